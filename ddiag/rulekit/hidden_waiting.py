"""When waiting for a late rank costs nothing: the hosts set the pace, and the devices would have idled anyway."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from ddiag.model.signals import StepBudget

AMPLE = 3.0
"""Time a device idles for its own host / waiting, from which the waiting fits into it with certainty: waiting is a mean
over all ranks, and of two ranks only one waits."""
NEGLIGIBLE = 0.1
"""Idle time after blocking calls / waiting, up to which no host waits for its device."""
SLOWER = 0.25
"""What the late rank's steps are longer / waiting, up to which it does not fall further behind with every step."""


def costs_nothing(budget: StepBudget, late: Collection[int], waited_ms: float) -> bool:
    """Whether the steps would be as long if the ranks *late*, for which others wait *waited_ms* per step, came in time.

    Where no host ever waits for a device, a rank that once began late stays as late for ever: the devices of the others
    wait in the collective, and so much less for their own hosts afterwards. Were its host slower than theirs, they
    would get ahead of their devices, which would not run out of work any more. *late* is empty where the late rank
    changes from step to step: then all of them have to idle for their own hosts.
    """
    if not budget.on_device:
        return False
    means = budget.table.filter("steady").group_by("rank").agg(pl.col("step_ms", "sync_ms", "host_ms").mean())
    own, others = (means.filter(is_late) for is_late in (pl.col("rank").is_in(late), ~pl.col("rank").is_in(late)))
    if others.is_empty() or own.is_empty() != (not late):
        return False
    longer_ms = own["step_ms"].to_numpy().max() - others["step_ms"].to_numpy().mean() if late else 0.0
    return bool(
        others["host_ms"].to_numpy().min() >= AMPLE * waited_ms
        and means["sync_ms"].to_numpy().max() <= NEGLIGIBLE * waited_ms
        and longer_ms <= SLOWER * waited_ms
    )
