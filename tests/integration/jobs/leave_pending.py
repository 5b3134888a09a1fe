"""A rank ends without destroying its process group, by itself or by an error, while collectives are under way."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from account import Account

HOW, LATE_S = sys.argv[2], float(sys.argv[3])
CALLS = 5


def main() -> None:
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    Account().write()
    if HOW == "done":
        return
    if dist.get_rank() == 1:
        time.sleep(LATE_S)
        return
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(CALLS)]
    if HOW == "raises":
        raise ValueError(f"{len(works)} calls are left to themselves")
    sys.exit(3)


main()
