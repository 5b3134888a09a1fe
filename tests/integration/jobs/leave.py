"""A process group is destroyed while its collectives are still under way: another rank is late for them."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from account import Account

LATE_S = float(sys.argv[2])
CALLS = 20


def main() -> None:
    dist.init_process_group("gloo")
    Account().write()
    tensor = torch.ones(4)
    if dist.get_rank() == 1:
        time.sleep(LATE_S)
    # Kept, and of one tensor that is kept: torch 2.4 alone hangs where its own threads have to free them.
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(CALLS)]
    dist.destroy_process_group()
    print(f"{len(works)} calls were left to end by themselves")


main()
