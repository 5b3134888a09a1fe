"""The demo's training job: a small image classifier under DDP on two CPU ranks.

It is written as people write it and knows nothing of ddiag, with one fault planted: images are read and decoded in the
training process (``num_workers=0``), so that both ranks wait for their next batch in every step. With ``--workers 2``
the fault is gone.
"""

from __future__ import annotations

import argparse
import itertools
import time
import zlib

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

IMAGE_SIDE = 96
IMAGES = 4096
READ_SECONDS = 0.0015
"""What one read from network storage takes."""


class RemoteImages(Dataset):
    """Compressed images on slow storage; every access reads one, decompresses it and flips some."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._shape = (IMAGE_SIDE, IMAGE_SIDE, 3)
        images = (random.integers(0, 60, self._shape, dtype=np.uint8) for _ in range(64))
        self._stored = [zlib.compress(image.tobytes(), 1) for image in images]

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(READ_SECONDS)
        pixels = np.frombuffer(zlib.decompress(self._stored[index % len(self._stored)]), np.uint8)
        image = pixels.reshape(self._shape).astype(np.float32) / 255.0
        if index % 2:
            image = image[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), index % 10


def classifier() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 16, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def train(*, steps: int, workers: int) -> None:
    """Train for a few steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)

    dataset = RemoteImages()
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset), num_workers=workers)
    model = DistributedDataParallel(classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    for images, labels in itertools.islice(loader, steps):
        optimizer.zero_grad()
        loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--workers", type=int, default=0, help="loader workers per rank")
    options = parser.parse_args()
    train(steps=options.steps, workers=options.workers)


if __name__ == "__main__":
    main()
