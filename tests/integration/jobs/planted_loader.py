"""A training whose loader has worker processes with one thing wrong with them, or nothing: see ``test_planted.py``.

Forward sleeps for as long as a device would compute, so that the CPUs are the workers'.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CULPRIT = 1
WIDTH = 64
RUN = 100
"""Pixels alike."""
BLOCK = 4 << 20
FILE_BYTES = 256 << 20
Batch = list[object]


class Mask:
    """Pixels that travel as lengths of runs, and are unpacked where they are unpickled: by whoever takes the batch.

    Without garbage to collect, and with little to send: all of the wait is this process's own work.
    """

    def __init__(self, runs: list[int]) -> None:
        self._runs = runs

    def __getstate__(self) -> list[int]:
        return self._runs

    def __setstate__(self, runs: list[int]) -> None:
        self._runs = runs
        self.pixels = [number % 2 for number, length in enumerate(runs) for _ in range(length)]


class Batches(Dataset[Batch]):
    """Batches, each with the work that *options* ask of this rank."""

    def __init__(self, options: argparse.Namespace, *, faulty: bool) -> None:
        self._options, self._faulty = options, faulty
        self._file, self._page = -1, mmap.mmap(-1, BLOCK)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Batch:
        options = self._options
        batch: Batch = [torch.full((8, WIDTH), float(index % 7))]
        if self._faulty:
            _spin(options.spin_ms)
            time.sleep(options.sleep_ms / 1e3)
            self._read(options.read_ms)
            if options.pixels:
                batch.append(self._mask())
        return batch

    def _mask(self) -> object:
        """Packed, or as the tensor that the worker can make of it."""
        runs = [RUN] * (self._options.pixels // RUN)
        if self._options.as_tensor:
            return torch.arange(len(runs)).remainder(2).to(torch.uint8).repeat_interleave(RUN)
        return Mask(runs)

    def _read(self, ms: float) -> None:
        """Blocks from all over a file, past the page cache."""
        if not ms:
            return
        if self._file < 0:
            self._file = os.open(data_file(self._options.out), os.O_RDONLY | os.O_DIRECT)
        until = time.monotonic() + ms / 1e3
        while time.monotonic() < until:
            os.preadv(self._file, [self._page], random.randrange(FILE_BYTES // BLOCK) * BLOCK)


def data_file(out: str) -> Path:
    return Path(out, "data.bin")


def _spin(ms: float) -> None:
    """*ms* of CPU time."""
    until = time.process_time() + ms / 1e3
    while time.process_time() < until:
        pass


def _as_it_is(batch: Batch) -> Batch:
    return batch


class Model(nn.Module):
    def __init__(self, step_ms: float) -> None:
        super().__init__()
        self._layers, self._step_ms = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)), step_ms

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(self._step_ms / 1e3)
        found: torch.Tensor = self._layers(batch)
        return found


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    if options.read_ms and rank == 0:
        data_file(options.out).write_bytes(os.urandom(FILE_BYTES))
    dist.barrier()
    data = Batches(options, faulty=not options.one_rank or rank == CULPRIT)
    loader = DataLoader(
        data, batch_size=None, num_workers=options.workers, collate_fn=_as_it_is, persistent_workers=True
    )
    model = DistributedDataParallel(Model(options.step_ms))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    until = time.monotonic() + options.seconds
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch[0]).square().mean()
        loss.backward()
        optimizer.step()
        if _all_done(time.monotonic() > until):
            break
    dist.destroy_process_group()


def _all_done(mine: bool) -> bool:
    """Whether any rank's time is up; all learn it in the same step."""
    done = torch.tensor(float(mine))
    dist.all_reduce(done)
    return bool(done)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=".")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--one-rank", action="store_true", help="only one rank's workers do what follows, per batch")
    parser.add_argument("--spin-ms", type=float, default=0.0)
    parser.add_argument("--sleep-ms", type=float, default=0.0)
    parser.add_argument("--read-ms", type=float, default=0.0)
    parser.add_argument("--pixels", type=int, default=0, help="of a mask beside the tensor")
    parser.add_argument("--as-tensor", action="store_true", help="the mask is a tensor when it is sent")
    return parser.parse_args()


if __name__ == "__main__":
    main()
