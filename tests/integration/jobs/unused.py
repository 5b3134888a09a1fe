"""DDP that searches for unused parameters: ``unused.py OUT all|some``; with ``some`` a branch is left out at times."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from account import Account
from torch import nn

KIND, STEPS, WIDTH = sys.argv[2], 40, 128


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor, whole: bool) -> torch.Tensor:
        values = self.trunk(values)
        return self.branch(values) if whole else values


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    account = Account()
    for step in range(STEPS):
        model(torch.randn(64, WIDTH), KIND == "all" or step % 2 == 0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        account.step_ended()
    log = model._get_ddp_logging_data()
    account.more = {"log": log, "branch_bytes": sum(one.nbytes for one in model.module.branch.parameters())}
    account.write()
    dist.destroy_process_group()


main()
