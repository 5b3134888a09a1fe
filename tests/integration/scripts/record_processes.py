"""Processes around a training: ``record_processes.py FOLDER`` spawns two ranks, each with helpers of every kind."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(sys.argv[1])


def helper(name):
    """A child that uses torch but does not train."""
    torch.save(torch.ones(3), FOLDER / f"{name}-{os.getpid()}.pt")


def forked_child_trains(rank):
    """A forked child that joins no job but steps an optimizer: a training of its own."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    os._exit(0)


def train(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"tcp://127.0.0.1:{port}")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 4))
    for context in ("fork", "spawn"):
        for (batch,) in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=context):
            model(batch).mean().backward()
            optimizer.step()
    child = os.fork()
    if child == 0:
        forked_child_trains(rank)
    os.waitpid(child, 0)
    for context in ("fork", "spawn"):
        process = multiprocessing.get_context(context).Process(target=helper, args=(context,))
        process.start()
        process.join()
    (FOLDER / f"pid-{rank}").write_text(f"{os.getpid()} {child}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(int(sys.argv[2]),), nprocs=2)
