"""Signals of memory and of the links of devices, from what the recorder counts and its supervisor samples."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class AllocatorRetries:
    """The caching allocator ran out, gave its cache back and asked again: counted in all steps after warm-up."""

    table: pl.DataFrame
    """rank, steps, steps_with_retries, retries, extra_ms (by how much longer a step with retries takes than one
    without; null with too few of either), inactive_split_share (free parts of blocks partly in use / reserved, at step
    ends; null unknown), ooms (requests that failed altogether and that the job survived; null unknown)."""


@dataclass(frozen=True)
class HostMemory:
    """How full the memory of the job's hosts became, page cache that can be given back not counted."""

    table: pl.DataFrame
    """host, ranks (how many run there), limit (of the control group or of the host, whichever was fuller: cgroup,
    host), limit_bytes, peak_bytes, job_bytes (resident sets of the ranks and their child processes then; memory they
    share counts twice), largest_rank and largest_bytes (with its child processes, then), swapped_bytes (by how much
    swap in use rose; null unknown), samples."""


@dataclass(frozen=True)
class HostLink:
    """Traffic between devices and their host while the judged steps ran, as the devices count it."""

    table: pl.DataFrame
    """host, device, ranks (seen on it), samples, pcie_gen and pcie_width (the best seen), link_gbps (what such a link
    carries in one direction), to_device_gbps, from_device_gbps (means), util (mean, % of the time with a kernel
    running), nvlink_gbps (all NVLinks, both directions; null where there are none)."""
    seconds: float


SAMPLED_FAMILIES: tuple[type, ...] = (AllocatorRetries, HostMemory, HostLink)
