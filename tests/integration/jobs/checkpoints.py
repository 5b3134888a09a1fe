"""A training that saves in every way there is: ``checkpoints.py OUT FOLDER``; says in which step it saved how."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from account import Account
from torch import nn

FOLDER, STEPS, WIDTH = Path(sys.argv[2]), 14, 512


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, aside = dist.get_rank(), dist.new_group(backend="gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    running: list[Any] = []

    def safetensors() -> None:
        from safetensors.torch import save_file

        save_file(model.module.state_dict(), FOLDER / f"{rank}.safetensors")

    def in_the_background() -> None:
        state = {"model": model.module.state_dict()}
        running.append(dcp.async_save(state, checkpoint_id=FOLDER / "async", process_group=aside))

    ways: dict[int, Callable[[], Any]] = {
        2: lambda: torch.save(model.module.state_dict(), FOLDER / f"{rank}.pt"),
        4: lambda: dcp.save({"model": model.module.state_dict()}, checkpoint_id=FOLDER / "dcp"),
        6: in_the_background,
    }
    try:
        import safetensors as _found  # noqa: F401
    except ImportError:
        pass
    else:
        ways[8] = safetensors
    account = Account()
    for step in range(STEPS):
        model(torch.randn(64, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 in ways:
            ways[step + 1]()
        time.sleep(0.02)
    for one in running:
        one.result()
    account.more = {"saved": sorted(ways)}
    account.write()
    dist.destroy_process_group()


main()
