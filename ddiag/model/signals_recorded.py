"""Signals that only ddiag's recorder gives, from what it saw of processes and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class StoodStill:
    """Recorded communication that all members were seen in, without waiting for late ranks; ms per step, mean over
    ranks. Evaluation, checkpoints and logging are left out."""

    transfer_ms: float
    """Data moved."""
    blocked_ms: float
    """Of that, in calls that backward waits for one by one, or between backward and the update: the training thread
    (timed on a device: its compute stream) stood still."""

    @property
    def overlap_share(self) -> float:
        """The part that runs, or is issued to run, beside compute, 0–1."""
        return 1.0 - self.blocked_ms / self.transfer_ms if self.transfer_ms > 0 else 0.0


@dataclass(frozen=True)
class Exits:
    """How the training processes of the attempt that is analysed ended."""

    table: pl.DataFrame
    """As the table ``exits``, a row for each rank that was recorded; beside it out_of_memory_kills: by how much the
    host's count of processes killed for want of memory rose while it was watched (null unknown)."""
    exit_code: int | None
    """Of the whole job, as a shell shows it; None while it runs, or when its supervisor was killed."""
    asked_to_end: str = ""
    """Signal with which somebody told the job to end; empty when nobody did."""
    started_again: bool = False
    """The workers were started again after this attempt."""
    missing: tuple[int, ...] = ()
    """Ranks of the world of which nothing was recorded."""


@dataclass(frozen=True)
class DeviceHealth:
    """What the driver said of the devices while the judged steps ran and the devices were busy."""

    table: pl.DataFrame
    """host, device, name, ranks (seen on it), samples (of the busy device), and of those: thermal_share (clock lowered
    for heat), brake_share (by the power supply or another hardware signal), sm_mhz (median), max_sm_mhz; link_samples
    (device or link busy), and of those: pcie_width and pcie_gen (the best seen), max_pcie_width, max_pcie_gen;
    throttled_share (of the time: slowed for heat, as the driver adds it up), replays_per_min (transfers over the link
    that had to be repeated); null where the driver does not tell."""
    seconds: float


@dataclass(frozen=True)
class PinnedMemory:
    """Page-locked host memory of torch's pool over the run."""

    table: pl.DataFrame
    """rank, last_bytes, growth_bytes_per_step (slope after warm-up), rising (share of the looks that saw more than the
    one before), looks, steps (from the first look to the last)."""
    free_bytes: float | None
    """Host memory that was free at last; None unknown, or with several hosts."""


@dataclass(frozen=True)
class UnusedSearch:
    """DDP modules that search for unused parameters."""

    looks: int
    """Iterations in which the result was looked at, of the module with the fewest."""
    ever_unused: bool
    """Some parameter was unused in some of them."""
    modules: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class UnmarkedTime:
    """What the training thread did between an update and the next batch, and no phase accounts for."""

    ms_per_step: Mapping[int, float]
    """By rank."""
    after: str
    """Phase that most of it follows."""


@dataclass(frozen=True)
class LoaderWorkers:
    """Worker processes of the data loaders while the judged steps ran, and how many batches they had ready."""

    table: pl.DataFrame
    """rank, host, workers (of its loader), input_ms (wait per step), typical_ms (its median over steps), empty_share
    (part of the wait in steps that found no batch ready), samples, cpu_share (CPUs a worker used, 1: it computed all
    the time), runnable_share and blocked_share (part of the looks at a worker at which it had or wanted a CPU; slept
    uninterruptibly, as for a disk), children_share (CPUs that all child processes of the rank used / workers); null
    unknown."""
    seconds: float


RECORDED_FAMILIES: tuple[type, ...] = (Exits, DeviceHealth, PinnedMemory, UnusedSearch, UnmarkedTime, LoaderWorkers)
