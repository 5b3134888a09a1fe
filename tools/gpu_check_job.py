"""The job that ``tools.gpu_check`` records: DDP on one device, with a known memory peak and a known burst of copies.

It writes what it did itself, to be compared with the recording.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddiag

STEPS = 80
PEAK_STEP = 30
COPY_STEPS = range(40, 60)
PEAK_MIB, COPY_MIB = 1024, 256
WIDTH, LAYERS = 1024, 12
BATCH = {"cuda": 1024, "cpu": 16}
MIB = 1024 * 1024


def train(device: str, pace_s: float) -> dict[str, object]:
    cuda = device == "cuda"
    recording = ddiag.record()
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batch = torch.randn(BATCH[device], WIDTH, device=device)
    host = torch.empty(COPY_MIB * MIB if cuda else MIB, dtype=torch.uint8, pin_memory=cuda)
    peaks = []
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == PEAK_STEP and cuda:
            torch.empty(PEAK_MIB * MIB, dtype=torch.uint8, device=device)
        if step in COPY_STEPS:
            with recording.phase("h2d"):
                for _ in range(4):
                    host.to(device, non_blocking=True, copy=True)
                if cuda:
                    torch.cuda.synchronize()
        model(batch).square().mean().backward()
        time.sleep(pace_s)
        optimizer.step()
        peaks.append(torch.cuda.max_memory_allocated() if cuda else 0)
    if cuda:
        torch.cuda.synchronize()
    copied = 4 * len(COPY_STEPS) * host.numel() if cuda else 0
    return {"steps": STEPS, "peaks": peaks, "copied_bytes": copied, "layers": LAYERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    # Long enough in all for several samples of the device.
    found = train(options.device, 0.1)
    (options.out / "truth.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
