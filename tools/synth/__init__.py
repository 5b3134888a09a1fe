"""Synthetic multi-rank traces with a planted fault and a known answer: ``python -m tools.synth --help``."""

from __future__ import annotations

import random
from pathlib import Path

from tools.synth.communication import communication, transfer_ns
from tools.synth.engine import Rank, play
from tools.synth.job import Job
from tools.synth.kineto import write_trace
from tools.synth.scenarios import SCENARIOS, Scenario
from tools.synth.workload import training

__all__ = ["SCENARIOS", "Job", "Scenario", "generate", "simulate"]


def simulate(job: Job) -> list[Rank]:
    """Run the job and return its ranks with everything that happened on them."""
    ranks = [_rank(job, index) for index in range(job.ranks)]
    loops = {rank.rank: training(job, rank, communication(job, rank)).program() for rank in ranks}
    play(loops, lambda call: transfer_ns(job, call))
    return ranks


def generate(job: Job, folder: Path) -> list[Path]:
    """Run the job and write one trace per rank that was profiled; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    clocks = random.Random(job.seed)
    offsets_ns = [int(clocks.uniform(-1, 1) * job.clock_offset_ms * 1e6) for _ in range(job.ranks)]
    return [
        write_trace(job, rank, folder, clock_offset_ns=offsets_ns[rank.rank])
        for rank in simulate(job)
        if rank.rank not in job.missing_ranks
    ]


STEP_COMPUTE_MS = 68.0
STEP_HOST_MS = 6.0
"""What one step of the default job takes on the device and on the host."""


def _rank(job: Job, index: int) -> Rank:
    late = job.late if job.late is not None and job.late.hits(index) else None
    host_factor = device_factor = 1.0
    if late is not None and late.kind == "device":
        device_factor = 1 + late.ms / (STEP_COMPUTE_MS * job.compute_scale)
    if late is not None and late.kind == "host":
        host_factor = (STEP_COMPUTE_MS * job.compute_scale + late.ms) / STEP_HOST_MS
    return Rank(
        index,
        seed=job.seed,
        on_device=job.on_device,
        host_factor=host_factor,
        device_factor=device_factor,
        launch_blocking=job.launch_blocking,
    )
