"""A training that saves in the background: ``background_saves.py OUT FOLDER [every] [process]``.

The collectives of the training and of the thread that saves overlap: the files are written slowly. With ``every`` all
steps are looked at that can be; with ``process`` a process saves, once.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from account import Account
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

FOLDER, WIDTH, STEPS = Path(sys.argv[2]), 64, 32
EVERY, PROCESS = "every" in sys.argv[3:], "process" in sys.argv[3:]
SAVES = (2,) if PROCESS else (2, 14, 16)
"""Steps in whose midst a save begins; the second still runs when the third begins."""
WRITING_S, STEP_S = 0.3, 0.05


class SlowWriter(dcp.FileSystemWriter):
    """Takes several steps, as big checkpoints do."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(WRITING_S)
        return super().write_data(*args, **kwargs)


def look_at_every_step() -> None:
    """The recorder's budget must not hide what the test is about."""
    sampling = sys.modules.get("ddiag.capture.hooks.sampling")
    if sampling is not None:
        sampling.FIRST_STEPS = STEPS  # type: ignore[attr-defined]


def main() -> None:
    dist.init_process_group("gloo")
    if EVERY:
        look_at_every_step()
    torch.manual_seed(0)
    groups = {step: dist.new_group(backend="gloo") for step in SAVES}
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    how = AsyncCheckpointerType.PROCESS if PROCESS else AsyncCheckpointerType.THREAD
    account, saves = Account(), {}
    unfinished: list[list[int]] = []
    for step in range(STEPS):
        model(torch.randn(64, WIDTH)).square().mean().backward()
        if step in SAVES:
            state, writer = {"model": model.module.state_dict()}, SlowWriter(FOLDER / str(step))
            saves[step] = dcp.async_save(
                state, storage_writer=writer, process_group=groups[step], async_checkpointer_type=how
            )
            assert isinstance(saves[step], Future)
        time.sleep(STEP_S)
        optimizer.step()
        optimizer.zero_grad()
        account.step_ended()
        unfinished.append([begun for begun, save in saves.items() if not save.done()])
    results = [type(save.result()).__name__ for save in saves.values()]
    account.logged()
    account.more = {"saves": list(SAVES), "unfinished": unfinished, "results": results}
    account.write()
    dist.destroy_process_group()


if __name__ == "__main__":  # a process that saves imports this file
    main()
