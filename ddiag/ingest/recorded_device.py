"""What a recording of a job on devices can and cannot tell of them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

HOST_TIMES = (
    "phases are the host's time: work it handed to the device counts where the host waits for it; peaks of device "
    "memory are the allocator's, the highest so far unless the job resets them"
)
NOT_TIMED = (
    "NCCL collectives were not timed on the device: how long they took, who waited for whom and what was exposed is "
    "not known; `ddiag run --device-timing` times them, --profile-steps A:B shows a few steps whole"
)


def device_notes(tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Sentences for a job with a device; none for one without. *tables* are those of a recorded run."""
    notes = []
    steps = tables.get("step_summaries", pl.DataFrame())
    if not steps.is_empty() and steps["device_allocated_bytes"].is_not_null().any():
        notes.append(HOST_TIMES)
    calls = tables.get("collectives", pl.DataFrame())
    if calls.is_empty():
        return notes
    on_device = calls.filter(pl.col("name").str.starts_with("nccl:").fill_null(value=False))
    timed = on_device.filter(pl.col("source") == "kernel").height
    if timed:
        notes.append(f"NCCL collectives were timed on the device: {timed / on_device.height:.0%} of those recorded")
    elif on_device.height:
        notes.append(NOT_TIMED)
    return notes
