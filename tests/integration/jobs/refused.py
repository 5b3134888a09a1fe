"""Every step has a call that works and one that torch refuses, which raises where it is issued; the last call does."""

from __future__ import annotations

import torch
import torch.distributed as dist
from account import Account

STEPS, N = 4, 100


def refused(tensor: torch.Tensor) -> bool:
    try:
        dist.all_gather([tensor[:2], tensor[:2]], tensor)
    except RuntimeError:
        return True
    return False


def main() -> None:
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    account = Account()
    sums: list[float] = []
    for _ in range(STEPS):
        x = torch.ones(N)
        dist.all_reduce(x)
        sums.append(x.sum().item() + refused(x))
        weight.sum().backward()
        optimizer.step()
        account.step += 1
    sums.append(float(refused(x)))
    account.more["sums"] = sums
    account.write()
    dist.destroy_process_group()


main()
