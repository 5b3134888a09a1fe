"""The host waits for the device inside the step, and the device then runs dry.

## Meaning
A call such as `loss.item()`, `tensor.nonzero()`, a copy to the host or `torch.cuda.synchronize()` blocks the training
thread until the device has finished everything. Only then does the host go on launching, with an empty queue.

## Impact
The device idles from each such call until the next kernel arrives.

## Diagnosis
Blocking calls on the training thread, and the device idle after them. A blocking call at the end of a step that only
waits for the device to finish costs nothing and is not counted.

## Mitigation
Remove the value from the loop: keep it on the device, read it every N steps, or copy it asynchronously to pinned
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from ddiag.model.signals import JobFacts, StepBudget, SyncPoints
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, name_ranks, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, host_time_unknown, over_steps, severity_over_steps

RULE = Rule(
    id="DD202",
    root_cause="RC-55",
    needs=(JobFacts, StepBudget, SyncPoints),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA; with_stack=True names the line",
    symptom="the device pauses at the same place of every step or micro-batch; removing the progress bar speeds it up",
    evidence="aten::item, nonzero, copies to the host or synchronise calls on the training thread, device idle after",
    applies=lambda signals: (facts := signals.get(JobFacts)) is None or facts.device_kind != "cpu",
    explained_by=("DD602", "DD1001", "DD1002", "DD1103", "DD804"),
    references=("https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html",),
)
ITEM = ("item", "_local_scalar_dense", "is_nonzero", "equal")
SHAPES = ("nonzero", "masked_select", "unique", "index", "repeat_interleave", "where")
COPIES = ("memcpy", "copy", "aten::to")
ALLOCATOR = ("aten::empty", "aten::resize", "malloc", "cudafree", "hipfree")
DEVICE_WIDE = ("devicesynchronize", "streamsynchronize", "eventsynchronize")


@dataclass(frozen=True)
class Limits:
    stall_share: float = 0.05
    """Idle after blocking calls / step for a warning: one read of the loss per step stays well below."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    stall_ms: float = 1.0
    """Below this the pauses do not add up to anything."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, sync = signals[JobFacts], signals[StepBudget], signals[SyncPoints]
    if not budget.on_device or sync.table.is_empty() or budget.step_ms <= 0:
        return
    per_rank = dict(sync.table.group_by("rank").agg(pl.col("stall_ms").sum()).sort("rank").iter_rows())
    floor = max(limits.stall_ms, limits.stall_share * budget.step_ms)
    stalled = sorted(rank for rank, stall in per_rank.items() if stall >= floor)
    if not stalled:
        return
    unknown = host_time_unknown(budget, facts)
    if unknown is not None:
        yield unknown
        return
    stall_ms = max(per_rank[rank] for rank in stalled)
    share = stall_ms / budget.step_ms
    worst = _worst_call(sync.table, stalled)
    everybody = set(stalled) == set(facts.ranks)
    place = f" at {worst['where']}" if worst["where"] else ""
    others = f" (and {worst['others']:.0f} other calls)" if worst["others"] >= 0.5 else ""
    yield Finding(
        title=f"{worst['op']}{place} lets the device run dry {_times(worst['count'])}{others}: "
        f"{stall_ms:.1f} ms idle per step ({share:.0%})",
        severity=severity_over_steps(share, budget, warning=limits.stall_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(ranks=() if everybody else tuple(stalled), where=worst["where"] or worst["op"]),
        evidence=(
            Evidence("idle after blocking calls", round(stall_ms, 3), "ms/step", round(floor, 3), over_steps(budget)),
            Evidence("idle after blocking calls", round(share, 4), "of step", limits.stall_share, "worst rank"),
            Evidence("of it after the worst call", round(worst["stall_ms"], 3), "ms/step", None, str(worst["op"])),
            Evidence(
                "calls that stalled it", round(worst["count"] + worst["others"], 1), "per step", None, "mean over ranks"
            ),
            Evidence("host blocked", round(worst["wait_ms"], 3), "ms/step", None, f"in {worst['op']}, mean over ranks"),
            Evidence("ranks stalled", len(stalled), f"of {len(per_rank)}", None, name_ranks(stalled)),
        ),
        fix=_fixes(str(worst["op"])),
        verify='torch.cuda.set_sync_debug_mode("warn") for one step lists every such call with its line; after the fix '
        f"`ddiag analyze NEW_TRACES` must show idle after blocking calls below {limits.stall_share:.0%} of the step",
        cost=step_cost(stall_ms, budget, facts),
        why="while the call blocked, the host issued nothing and lost its lead; the device then ran dry",
        doubt=doubts(
            facts, "the call may be needed (dynamic shapes, loss scaling); then move it to where the queue is long"
        ),
    )


def _times(count: float) -> str:
    if count < 0.95:
        return f"in {count:.0%} of steps"
    return "once per step" if count <= 1.05 else f"{count:.3g} times per step"


def _worst_call(table: pl.DataFrame, ranks: list[int]) -> dict[str, Any]:
    """The call with most idle time over *ranks*: op, where, and means per rank; ``others`` counts all other calls."""
    of_ranks = table.filter(pl.col("rank").is_in(ranks))
    total = (
        of_ranks.group_by("op", "where")
        .agg(pl.col("stall_ms", "wait_ms", "count_per_step").sum() / len(ranks))
        .sort("stall_ms", "op", descending=[True, False])
    )
    row = total.row(0, named=True)
    causing = total.filter(pl.col("stall_ms") > 0)
    return {**row, "count": row["count_per_step"], "others": causing["count_per_step"].sum() - row["count_per_step"]}


def _fixes(op: str) -> tuple[str, ...]:
    name = op.lower()
    steps: list[str] = []
    if any(part in name for part in ITEM):
        steps.append(
            "read scalars every N steps: keep `loss.detach()` on the device and call .item() only when logging "
            "(Lightning: self.log(on_step=False), log_every_n_steps=50; Hugging Face: logging_steps=50, "
            "logging_nan_inf_filter=False)"
        )
        steps.append("clip and check for NaN without the host: clip_grad_norm_(error_if_nonfinite=False), torch.where")
    if any(part in name for part in SHAPES):
        steps.append(
            "avoid results whose shape depends on values (nonzero, boolean indexing, unique): use torch.where, a fixed "
            "capacity with padding, or repeat_interleave(output_size=N)"
        )
    if any(part in name for part in COPIES):
        steps.append("copy with non_blocking=True between pinned memory (pin_memory=True) and the device")
    if any(part in name for part in DEVICE_WIDE):
        steps.append(
            "remove torch.cuda.synchronize() and timers from the loop (DeepSpeed wall_clock_breakdown: false, Megatron "
            "--timing-log-level 0); order streams with events (stream.wait_event) instead of the host"
        )
    if any(part in name for part in ALLOCATOR):
        steps.append(
            "the allocator blocks here: expandable_segments:True, no torch.cuda.empty_cache() in the loop (DD602)"
        )
        return tuple(steps)
    steps.append("what must be read: copy it to a pinned buffer with non_blocking=True and read it one step later")
    return tuple(steps)
