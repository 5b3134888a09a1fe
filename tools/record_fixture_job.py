"""The job that ``tools.record_fixture`` records: DDP on two CPU ranks, with a fault where one is asked for."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 32


class Samples(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Random rows; the first of each batch takes *slow_ms*."""

    def __init__(self, width: int, slow_ms: float) -> None:
        self._width, self._slow_ms = width, slow_ms

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._slow_ms and index % BATCH == 0:
            time.sleep(self._slow_ms / 1e3)
        return torch.randn(self._width)


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(options.layers) for layer in (nn.Linear(options.hidden, options.hidden), nn.Tanh())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=options.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    slow_ms = options.slow_ms if dist.get_rank() == options.slow_rank else 0.0
    batches = iter(DataLoader(Samples(options.hidden, slow_ms), batch_size=BATCH))
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
