"""A training on gloo that comes to a stop: ``hang.py KIND RANK``. What RANK does wrong stands on a line marked ``here``.

Every kind trains healthily for STEPS steps first. The marked line is what a diagnosis has to name.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import sys
import time

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


def clean_up() -> None:
    dist.barrier()  # here: cleanup


def go_wrong(rank: int, model: torch.nn.Module) -> None:
    """Between two steps."""
    guilty = rank == CULPRIT
    if KIND == "skip" and guilty:
        time.sleep(FOREVER_S)  # here: skip
    elif KIND == "different":
        if guilty:
            dist.broadcast(torch.ones(4), src=0)  # here: different
        else:
            metric()
    elif KIND == "sizes":
        dist.all_reduce(torch.ones(500 if guilty else 1000))  # here: sizes
    elif KIND == "send" and rank in (0, 1):
        peer = 1 - rank
        dist.send(torch.ones(1 << 22), dst=peer)  # here: send
        dist.recv(torch.ones(1 << 22), src=peer)
    elif KIND == "cleanup" and guilty:
        try:
            raise ValueError("a bad batch")
        finally:
            clean_up()
    elif KIND == "killed" and guilty:
        os.kill(os.getpid(), signal.SIGKILL)
    elif KIND == "stopped" and guilty:
        os.kill(os.getpid(), signal.SIGSTOP)  # here: stopped
    elif KIND == "gil" and guilty:
        ctypes.PyDLL(None).sleep(FOREVER_S)  # here: gil
    elif KIND == "evaluation" and guilty:
        evaluate(model.module)
    elif KIND == "slow":
        time.sleep(12)
    elif KIND == "checkpoint":
        checkpoint(model, rank)


def checkpoint(model: torch.nn.Module, rank: int) -> None:
    """A long one on every rank."""

    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            time.sleep(45)
            return (dict, ())

    torch.save({"model": model.state_dict(), "slow": Slow()}, f"{os.environ['CHECKPOINT']}.{rank}")


def main() -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=FOREVER_S))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if KIND == "compile":
        time.sleep(0)
    fewer = 2 if KIND == "uneven" and rank == CULPRIT else 0
    samples = Samples(2 * (STEPS + 4 - fewer), 2 * STEPS if KIND == "loader" and rank == CULPRIT else -1)
    for number, batch in enumerate(DataLoader(samples, batch_size=2)):
        if number == 0 and KIND == "first":
            time.sleep(45)
        step(model, optimizer, batch)
        if number >= STEPS:
            go_wrong(rank, model)
        metric()
    dist.barrier()  # here: uneven
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
