"""In every step a call as always, and one under torch.inference_mode of another size."""

from __future__ import annotations

import torch
import torch.distributed as dist
from account import Account

STEPS, N = 4, 100


def main() -> None:
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    account = Account()
    sums: list[float] = []
    for _ in range(STEPS):
        x = torch.ones(N)
        dist.all_reduce(x)
        account.called("all_reduce", None, 4 * N, 4 * N)
        with torch.inference_mode():
            y = torch.ones(2 * N)
            dist.all_reduce(y)
        account.called("all_reduce", None, 8 * N, 8 * N)
        sums.append(x.sum().item() + y.sum().item())
        weight.sum().backward()
        optimizer.step()
        account.step += 1
    account.more["sums"] = sums
    account.write()
    dist.destroy_process_group()


main()
