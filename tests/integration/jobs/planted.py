"""A training with one thing wrong with it, or nothing: what ``test_planted.py`` records.

The faults are what people really write; the healthy twin of each does the same work the right way.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 64
MIB = 1024 * 1024


class Batches(Dataset[torch.Tensor]):
    """Batches that lie in memory; reading one takes *read_ms*."""

    def __init__(self, width: int, read_ms: float) -> None:
        self._batch, self._read_ms = torch.randn(BATCH, width), read_ms

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._read_ms:
            time.sleep(self._read_ms / 1e3)
        return self._batch


class Extra(nn.Module):
    """Work of a rank's own, in forward."""

    def __init__(self, products: int, *, spare: bool) -> None:
        super().__init__()
        self._spare = nn.Linear(8, 8) if spare else None
        self._products, self._matrix = products, torch.randn(512, 512)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for _ in range(self._products):
            torch.mm(self._matrix, self._matrix)
        return batch


class Job:
    """The training loop, and what goes wrong in it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank = dist.get_rank()
        self.culprit = self.rank == options.culprit
        width = options.width
        layers = [layer for _ in range(options.layers) for layer in (nn.Linear(width, width), nn.Tanh())]
        extra = Extra(options.products if self.culprit else 0, spare=options.spare)
        self.model = DistributedDataParallel(
            nn.Sequential(extra, *layers),
            bucket_cap_mb=options.bucket_mb,
            find_unused_parameters=options.find_unused,
        )
        self.scaler = torch.amp.GradScaler("cpu", enabled=options.scale)
        self.writer = _writer(options.out) if options.log_every and self.culprit else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)
        read_ms = options.slow_read_ms if self.culprit else 0.0
        self.batches = iter(DataLoader(Batches(width, read_ms), batch_size=None))
        mine = options.objects if self.culprit else 0
        self.objects = [{"at": [number]} for number in range(mine)]
        self.kept: list[torch.Tensor] = []

    def step(self, number: int) -> None:
        options = self.options
        self.optimizer.zero_grad()
        for micro_step in range(options.accumulate):
            last = micro_step == options.accumulate - 1
            with contextlib.nullcontext() if last or not options.no_sync else self.model.no_sync():
                loss = self.model(next(self.batches)).square().mean() / options.accumulate
                if options.overflow_every and number % options.overflow_every == 0:
                    loss = loss * torch.inf
                self.scaler.scale(loss).backward()
        self.update()
        if self.writer is not None and number % options.log_every == 0:
            for name, parameter in self.model.named_parameters():
                self.writer.add_histogram(name, parameter, number)
        if options.collect and self.culprit:
            gc.collect()
        if options.keep_mb:
            self.kept.append(torch.ones(options.keep_mb * MIB // 4))
            if options.forget_every and number % options.forget_every == 0:
                self.kept.clear()
        if options.save_every and number % options.save_every == 0:
            self.save()

    def update(self) -> None:
        clip = self.options.clip
        if clip == "unscaled":
            self.scaler.unscale_(self.optimizer)
        if clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def save(self) -> None:
        """Rank 0 writes, the others wait: as most scripts do it."""
        if self.rank == 0:
            path = Path(self.options.out, "checkpoint.pt")
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
            with path.open("rb") as written:
                os.fsync(written.fileno())
        dist.barrier()


def _writer(out: str) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(out)


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    job = Job(options)
    for number in range(1, options.steps + 1):
        job.step(number)
    dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=".")
    parser.add_argument("--culprit", type=int, default=1, help="the rank that a fault of one rank falls on")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--slow-read-ms", type=float, default=0.0, help="of one rank")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--no-sync", action="store_true", help="accumulate without reducing")
    parser.add_argument("--objects", type=int, default=0, help="on the heap of one rank")
    parser.add_argument("--collect", action="store_true", help="that rank collects garbage in every step")
    parser.add_argument("--keep-mb", type=int, default=0, help="what a step keeps")
    parser.add_argument("--forget-every", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--products", type=int, default=0, help="matrix products that one rank computes besides")
    parser.add_argument("--log-every", type=int, default=0, help="that rank writes histograms of all parameters")
    parser.add_argument("--find-unused", action="store_true", help="DDP searches for unused parameters")
    parser.add_argument("--spare", action="store_true", help="the model has a layer that it does not use")
    parser.add_argument("--scale", action="store_true", help="with a gradient scaler")
    parser.add_argument("--overflow-every", type=int, default=0)
    parser.add_argument("--clip", choices=["scaled", "unscaled"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
