"""The job that ``tools.gpu_check`` runs: DDP on one device, with a known memory peak, a known burst of copies, a call
that the device comes to late, a busy stretch, and a captured CUDA graph.

It writes what it did itself, to be compared with a recording of it, and with itself when nothing records it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

import ddiag

STEPS = 80
HELD_STEP = 4
"""One of the first, which every tier looks at."""
PEAK_STEP = 30
COPY_STEPS = range(40, 60)
BUSY_STEP = 72
BUSY_S = 3.0
PEAK_MIB, COPY_MIB = 1024, 256
WIDTH, LAYERS = 1024, 12
BATCH = {"cuda": 1024, "cpu": 16}
MIB = 1024 * 1024
HELD_ELEMENTS = 12_345
HELD_CYCLES = 200_000_000
"""About a tenth of a second."""
GRAPH_WARM, REPLAYS = 3, 10
PACE_S = 0.1
"""Long enough in all for several samples of the device."""


def train(device: str) -> dict[str, Any]:
    cuda = device == "cuda"
    recording = ddiag.record()
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batch = torch.randn(BATCH[device], WIDTH, device=device)
    host = torch.empty(COPY_MIB * MIB if cuda else MIB, dtype=torch.uint8, pin_memory=cuda)
    peaks, over, losses = [], [], []
    held_ms = 0.0
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == HELD_STEP:
            held_ms = hold(device)
        if step == PEAK_STEP and cuda:
            torch.empty(PEAK_MIB * MIB, dtype=torch.uint8, device=device)
        if step in COPY_STEPS:
            with recording.phase("h2d"):
                for _ in range(4):
                    host.to(device, non_blocking=True, copy=True)
                synchronize(device)
        loss = model(batch).square().mean()
        loss.backward()
        time.sleep(PACE_S)
        if step == BUSY_STEP and cuda:
            be_busy(batch)
        synchronize(device)
        over.append(time.monotonic_ns())
        optimizer.step()
        losses.append(loss.detach())
        peaks.append(torch.cuda.max_memory_allocated() if cuda else 0)
    copied = 4 * len(COPY_STEPS) * host.numel() if cuda else 0
    return {
        "peaks": peaks,
        "copied_bytes": copied,
        "layers": LAYERS,
        "trained_steps": STEPS,
        "copy_steps": [COPY_STEPS.start, COPY_STEPS.stop],
        "over_ns": over,
        "held_ms": held_ms,
        "held_bytes": HELD_ELEMENTS * 4,
        "digest": digest([*model.parameters(), *losses]),
    }


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def hold(device: str) -> float:
    """A reduction that the device comes to only after work of so many milliseconds."""
    tensor = torch.ones(HELD_ELEMENTS, device=device)
    if device != "cuda":
        dist.all_reduce(tensor)
        return 0.0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    torch.cuda._sleep(HELD_CYCLES)  # noqa: SLF001 - what torch's own tests hold a stream up with
    end.record()
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def be_busy(batch: torch.Tensor) -> None:
    """Products on a device that has nothing else to do, for a few seconds."""
    square = batch.T @ batch
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        for _ in range(20):
            square @ square
        torch.cuda.synchronize()


def graph(device: str) -> str:
    """A step with its reduction, captured as a graph and replayed; a digest of what it computed."""
    torch.manual_seed(1)
    model = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    batch = torch.randn(32, 64, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        return loss

    if device != "cuda":
        return digest([step() for _ in range(GRAPH_WARM + REPLAYS)])
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(GRAPH_WARM):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = step()
    losses = []
    for _ in range(REPLAYS):
        captured.replay()
        losses.append(loss.clone())
    torch.cuda.synchronize()
    return digest([*model.parameters(), *losses])


def digest(tensors: Iterable[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for one in tensors:
        found.update(one.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def kernels_profiled(device: str) -> int:
    """What torch.profiler sees of a device here, where nothing else profiles."""
    if device != "cuda":
        return 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        tensor = torch.ones(1024, 1024, device=device)
        (tensor @ tensor).sum()
        torch.cuda.synchronize()
    return sum(one.device_type == torch.autograd.DeviceType.CUDA for one in profiler.events())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--control", action="store_true", help="nothing records: see what can be profiled here")
    options = parser.parse_args()
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    updates = 0

    def updated(*_: Any) -> None:
        nonlocal updates
        updates += 1

    handle = register_optimizer_step_post_hook(updated)
    found = train(options.device)
    found["graph"] = graph(options.device)
    found["steps"] = updates
    handle.remove()
    if options.device == "cuda":
        found["uuid"] = str(torch.cuda.get_device_properties(0).uuid)
    if options.control:
        found["kernels"] = kernels_profiled(options.device)
    (options.out / "truth.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
