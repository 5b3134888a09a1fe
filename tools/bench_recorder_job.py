"""The job that ``tools.bench_recorder`` measures: DDP whose recorder is switched on and off between blocks of steps.

Everything is compared inside one process group, block against block, so that what the machine does meanwhile falls on
all modes alike. A block trains a fresh replica; its first steps are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OFF, TRACEML = "off", "traceml"
WARM_STEPS = 8
"""More than the sampling tier's first steps, all of which it looks at."""
LAYERS = 34
SHAPES = {"cpu": (256, 192), "cuda": (4096, 4096)}
"""Width and batch: steps of 50 to 250 ms."""
BUCKET_MB = 0.2
"""Less than a layer: one collective each."""
RING_RECORDS = 33_000
"""Goes once round a ring, so that its whole memory counts."""
CALLS, ISSUED = 20_000, 100

Steps = dict[str, list[float]]


@contextlib.contextmanager
def recording(mode: str, out: Path) -> Iterator[Any]:
    """The recorder, on in the tier *mode*; nothing with OFF and TRACEML."""
    if mode in (OFF, TRACEML):
        yield None
        return
    import ddiag
    from ddiag.capture import recorder

    os.environ["DDIAG_TIER"] = mode
    with ddiag.record(out / "runs", name=mode):
        if recorder.current is None:
            raise SystemExit(f"{mode}: the recorder did not begin")
        yield recorder.current


def step_context(mode: str, model: nn.Module) -> contextlib.AbstractContextManager[None]:
    if mode != TRACEML:
        return contextlib.nullcontext()
    import traceml_ai  # type: ignore[import-not-found,unused-ignore]

    context: contextlib.AbstractContextManager[None] = traceml_ai.trace_step(model)
    return context


def train(mode: str, steps: int, device: str) -> Steps:
    """Per counted step: wall time, CPU time of the training thread and of the process, in ms."""
    torch.manual_seed(0)
    width, rows = SHAPES[device]
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.Tanh())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batch = torch.randn(rows, width, device=device)
    found: Steps = {"wall": [], "thread": [], "process": []}
    clocks = {"wall": time.perf_counter, "thread": time.thread_time, "process": time.process_time}
    for number in range(WARM_STEPS + steps):
        began = {name: clock() for name, clock in clocks.items()}
        with step_context(mode, model):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= WARM_STEPS:
            for name, clock in clocks.items():
                found[name].append((clock() - began[name]) * 1e3)
    return found


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def solo_group() -> Any:
    """A group of this rank alone: its collectives cost their issue and nothing else."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()]


def collectives(group: Any, count: int, tensor: torch.Tensor) -> dict[str, float]:
    """CPU time per asynchronous collective, and per wait for one that has long ended, in µs."""
    taken: dict[str, list[float]] = {"issue": [], "process": [], "wait": []}
    for _ in range(0, count, ISSUED):
        began, began_all = time.thread_time(), time.process_time()
        works = [dist.all_reduce(tensor, group=group, async_op=True) for _ in range(ISSUED)]
        issued = time.thread_time()
        while not all(work.is_completed() for work in works):
            time.sleep(0.001)
        ended, ended_all = time.thread_time(), time.process_time()
        for work in works:
            work.wait()
        taken["issue"].append(issued - began)
        taken["process"].append(ended_all - began_all)
        taken["wait"].append(time.thread_time() - ended)
    return {name: sorted(values)[len(values) // 4] / ISSUED * 1e6 for name, values in taken.items()}


def marks(active: Any) -> float:
    """CPU time of one phase mark, in µs: a phase has two, its beginning and its end."""
    from ddiag.schema.phases import Phase

    taken = []
    for _ in range(20):
        began = time.thread_time()
        for _ in range(ISSUED):
            active.leave(active.enter(Phase.LOGGING))
        taken.append(time.thread_time() - began)
    return sorted(taken)[5] / (2 * ISSUED) * 1e6


def micro(mode: str, out: Path, group: Any, device: str) -> dict[str, Any]:
    """What one asynchronous collective and one phase cost, and what the rings weigh when they are full."""
    tensor, before = torch.ones(8, device=device), rss_mb()
    with recording(mode, out) as active:
        found: dict[str, Any] = {"collective": collectives(group, CALLS, tensor)}
        if active is not None:
            found["mark"] = marks(active)
            collectives(group, RING_RECORDS, tensor)
        found["rss_mb"] = rss_mb() - before
    return found


def compare(modes: list[str], rounds: int, steps: int, out: Path, device: str) -> dict[str, Any]:
    order = random.Random(0)
    group = solo_group()
    train(OFF, steps, device)
    found: dict[str, Any] = {"micro": {}, "rounds": []}
    for mode in modes:
        if mode != TRACEML:
            found["micro"][mode] = micro(mode, out, group, device)
    for _ in range(rounds):
        means: dict[str, dict[str, float]] = {}
        for mode in order.sample(modes, len(modes)):
            dist.barrier()
            with recording(mode, out):
                # Means: a sampling tier makes a few steps dear, which a median would hide.
                means[mode] = {name: statistics.mean(values) for name, values in train(mode, steps, device).items()}
        found["rounds"].append(means)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--modes", default=OFF)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--device", choices=list(SHAPES), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    found = compare(options.modes.split(","), options.rounds, options.steps, options.out, options.device)
    (options.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
