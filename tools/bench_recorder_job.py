"""The job that ``tools.bench_recorder`` measures: DDP trained with the recorder on and off, inside one process group.

What the machine does meanwhile must fall on both alike, so they alternate in two ways. Blocks of steps: the recorder
begins and ends, as a user's would; a block trains a fresh replica, and its first steps are not counted. Turns: in one
recording, the recorder's hooks are switched off and on from step to step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tools.bench_recorder_parts import Switch, micro, operations, read_share

OFF, TRACEML = "off", "traceml"
WARM_STEPS = 12
"""More than the sampling tiers' first steps, all of which they look at, and what they take to settle."""
LAYERS = 34
TURNS = 36
"""For each round of blocks: what tells a small difference is many steps beside each other."""
SHAPES = {"cpu": (256, 256), "cuda": (4096, 4096)}
"""Width and batch: steps of 50 to 250 ms."""
BUCKET_MB = 0.2
"""Less than a layer: one collective each."""

Steps = dict[str, list[float]]
CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "thread": time.thread_time,
    "process": time.process_time,
}


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


class Training:
    """A replica and what one of its steps takes."""

    def __init__(self, device: str, *, width: int = 0, rows: int = 0, bucket_mb: float = BUCKET_MB) -> None:
        torch.manual_seed(0)
        width, rows = width or SHAPES[device][0], rows or SHAPES[device][1]
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.Tanh())]
        self.model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=bucket_mb)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)
        self.batch = torch.randn(rows, width, device=device)
        self.device = device

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, mode: str = OFF) -> dict[str, float]:
        """Milliseconds of one step, by each clock."""
        began = {name: clock() for name, clock in CLOCKS.items()}
        with step_context(mode, self.model):
            self.step()
        return {name: (clock() - began[name]) * 1e3 for name, clock in CLOCKS.items()}


def block(mode: str, steps: int, device: str, active: Any) -> tuple[dict[str, float], float, float]:
    """Mean milliseconds of the counted steps by each clock; the parts the tier looked at and memory was read in.

    Means: a sampling tier makes a few steps dear, which a median would hide.
    """
    training = Training(device)
    switch = None if active is None else Switch(mode, active)
    found: list[dict[str, float]] = []
    looked = 0
    for number in range(WARM_STEPS + steps):
        looking = switch is not None and switch.looking
        taken = training.timed(mode)
        if number >= WARM_STEPS:
            found.append(taken)
            looked += looking
    means = {name: statistics.mean(one[name] for one in found) for name in CLOCKS}
    return means, looked / steps, 0.0 if active is None else read_share(active, steps)


def take_turns(mode: str, rounds: int, device: str, out: Path) -> dict[str, Any]:
    """Steps of one training, by what the recorder does in them; twice off, to see what a difference means here."""
    order = random.Random(1)
    with recording(mode, out) as active:
        training = Training(device)
        for _ in range(WARM_STEPS):
            training.step()
        switch = Switch(mode, active)
        found = []
        with switch.held():
            for _ in range(rounds):
                taken = {}
                for kind in order.sample(switch.kinds, len(switch.kinds)):
                    switch.to(kind)
                    taken[kind] = training.timed()
                found.append(taken)
        return {"turns": found, "operations": operations(active)}


def compare(modes: list[str], rounds: int, steps: int, out: Path, device: str) -> dict[str, Any]:
    order = random.Random(0)
    group = solo_group()
    block(OFF, steps, device, None)
    found: dict[str, Any] = {"rounds": [], "rows": SHAPES[device][1]}
    for mode in modes:
        if mode not in (OFF, TRACEML):
            found["micro"] = one_by_one(partial(micro, partial(recording, mode, out), mode, group, device))
            found |= take_turns(mode, TURNS * rounds, device, out)
    sampled: list[float] = []
    read: list[float] = []
    for _ in range(rounds):
        means: dict[str, dict[str, float]] = {}
        for mode in order.sample(modes, len(modes)):
            dist.barrier()
            with recording(mode, out) as active:
                means[mode], looked, reads = block(mode, steps, device, active)
                sampled += [] if active is None else [looked]
                read += [] if active is None else [reads]
        found["rounds"].append(means)
    return found | {
        "sampled": statistics.mean(sampled) if sampled else 1.0,
        "read": statistics.mean(read) if read else 0.0,
    }


def one_by_one(measured: Callable[[], dict[str, float | None]]) -> dict[str, float | None]:
    """What *measured* finds on this rank while the others sleep, as in a job that has a CPU for each busy thread.

    All at once have more such threads than CPUs (three each). Those that call us then seldom run beside the one that
    issues, which need not wait for the interpreter, and a collective looks two or three times cheaper than it is.
    """
    found: dict[str, float | None] = {}
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            found = measured()
        dist.barrier()
    return found


def solo_group() -> Any:
    """A group of this rank alone: its collectives cost their issue and nothing else."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--modes", default=OFF)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--device", choices=list(SHAPES), default="cpu")
    parser.add_argument("--rows", type=int, default=0)
    options = parser.parse_args()
    if options.rows:
        SHAPES[options.device] = (SHAPES[options.device][0], options.rows)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    found = compare(options.modes.split(","), options.rounds, options.steps, options.out, options.device)
    (options.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
