"""DistributedDataParallel: buckets, their rebuild, and gradient accumulation with or without ``no_sync``."""

from __future__ import annotations

import contextlib
import sys

import torch
import torch.distributed as dist
from account import Account
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE, NO_SYNC = int(sys.argv[2]), sys.argv[3] == "no_sync"
STEPS = int(sys.argv[4]) if len(sys.argv) > 4 else 4
WIDTH = 100


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.1, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    account = Account()
    for _ in range(STEPS):
        for micro in range(ACCUMULATE):
            alone = NO_SYNC and micro < ACCUMULATE - 1
            with model.no_sync() if alone else contextlib.nullcontext():
                model(torch.randn(4, WIDTH)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        account.step_ended()
    account.logged()
    account.more["bytes"] = sum(one.nbytes for one in model.parameters())
    account.write()
    dist.destroy_process_group()


main()
