"""A training on gloo that comes to a stop: ``hang.py KIND RANK``; what RANK does wrong is on a line marked ``here``.

Every kind trains healthily for STEPS steps first; then the file MARK is written. The marked line is what a diagnosis
has to name.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 8
FOREVER_S = 600
KIND, CULPRIT = sys.argv[1], int(sys.argv[2])


class Samples(Dataset):
    """Ready at once; the culprit's data set sleeps when it is told to."""

    def __init__(self, length: int, sleeps_at: int = -1) -> None:
        self.length, self.sleeps_at = length, sleeps_at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.sleeps_at:
            time.sleep(FOREVER_S)  # here: loader
        return torch.full((32,), float(index % 7))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)


def metric() -> None:
    """What every rank does after every step."""
    dist.all_reduce(torch.ones(4))


def evaluate(model: torch.nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(Samples(64), batch_size=2):
            model(batch)
            time.sleep(FOREVER_S)  # here: evaluation
    model.train()


def skip(_model: torch.nn.Module) -> None:
    time.sleep(FOREVER_S)  # here: skip


def other_call(_model: torch.nn.Module) -> None:
    dist.broadcast(torch.ones(4), src=0)  # here: different


def fail(_model: torch.nn.Module) -> None:
    """Swallows the error, as many scripts do, on the way to a call that nobody else makes."""
    try:
        raise ValueError("a bad batch")
    finally:
        dist.barrier()  # here: cleanup


def die(_model: torch.nn.Module) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_model: torch.nn.Module) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)  # here: stopped


def hold_gil(_model: torch.nn.Module) -> None:
    ctypes.PyDLL(None).sleep(FOREVER_S)  # here: gil


def other_size(_model: torch.nn.Module) -> None:
    dist.all_reduce(torch.ones(500))  # here: sizes


def send_first(_model: torch.nn.Module) -> None:
    """Both of two ranks: neither receives before it has sent."""
    peer = 1 - dist.get_rank()
    dist.send(torch.ones(1 << 22), dst=peer)  # here: send
    dist.recv(torch.ones(1 << 22), src=peer)


def pause(_model: torch.nn.Module) -> None:
    time.sleep(12)


def checkpoint(model: torch.nn.Module) -> None:
    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            time.sleep(45)
            return (dict, ())

    path = Path(f"{os.environ['CHECKPOINT']}.{dist.get_rank()}")
    if not path.exists():
        torch.save({"model": model.state_dict(), "slow": Slow()}, path)


def nothing(_model: torch.nn.Module) -> None:
    pass


GUILTY = {
    "skip": skip,
    "different": other_call,
    "cleanup": fail,
    "killed": die,
    "stopped": stop,
    "gil": hold_gil,
    "sizes": other_size,
    "evaluation": lambda model: evaluate(model.module),
}
"""What the culprit does after a step."""
EVERYBODY = {"slow": pause, "checkpoint": checkpoint, "sizes": lambda _: dist.all_reduce(torch.ones(1000))}
"""What the others do."""


def after_step(rank: int, model: torch.nn.Module) -> None:
    if KIND == "send":
        (send_first if rank in (0, 1) else nothing)(model)
    elif rank == CULPRIT:
        GUILTY.get(KIND, nothing)(model)
    else:
        EVERYBODY.get(KIND, nothing)(model)


def main() -> None:
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=float(os.environ.get("TIMEOUT_S", FOREVER_S))))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fewer = 2 if KIND == "uneven" and rank == CULPRIT else 0
    samples = Samples(2 * (STEPS + 4 - fewer), 2 * STEPS if KIND == "loader" and rank == CULPRIT else -1)
    for number, batch in enumerate(DataLoader(samples, batch_size=2)):
        if number == 0 and KIND == "first":
            time.sleep(45)
        step(model, optimizer, batch)
        if number == STEPS - 1 and rank == 0:
            Path(os.environ.get("MARK", os.devnull)).touch()
        if number >= STEPS:
            after_step(rank, model)
        metric()
    if KIND == "export":
        time.sleep(45)
    dist.barrier()  # here: uneven
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
