"""The loader's worker processes cannot keep up: every N-th step waits for a batch.

## Meaning
N workers hand out batches in turn. When making a batch takes longer than N steps, the loop drains all N and then stops
until the first worker is ready again, once per N steps.

## Impact
Step times come in waves; the mean step is bound by workers, not by the device.

## Diagnosis
Waits in a multi-process loader spike with a fixed period; the period is the number of workers. The needed number
follows from it: N workers deliver one batch per mean step, so N x step / (step - stall) deliver one per step without a
stall.

## Mitigation
More workers while there are CPU cores; otherwise make each batch cheaper. Prefetching deeper does not help a steady
shortage: it only delays the first stall.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median_low

from ddiag.model.signals import InputWait, JobFacts, PythonOverhead, StepBudget
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, View, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps

RULE = Rule(
    id="DD103",
    root_cause="RC-43",
    needs=(JobFacts, StepBudget, InputWait),
    optional=(PythonOverhead,),
    capture="profile more steps than three times the number of loader workers, with torch.profiler around the loop",
    symptom="training freezes for a moment every few steps, always the same number of steps apart",
    evidence="waits in _MultiProcessingDataLoaderIter spike with a fixed period, the number of workers",
    references=("https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",),
    explained_by=("DD130", "DD131", "DD132", "DD133"),
)


@dataclass(frozen=True)
class Limits:
    stall_share: float = 0.05
    """Stall / step for a warning; the same as DD101, which sees the stall without its reason."""
    critical_share: float = 0.25
    """From here the job pays for a quarter of its devices in vain."""
    stall_ms: float = 1.0
    """Below this a stall is the price of calling next() at all."""
    periods: int = 2
    """Whole periods that the steady steps must hold before a period is believed."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, wait = signals[JobFacts], signals[StepBudget], signals[InputWait]
    period = wait.spike_period
    if wait.single_process or period is None or period < 2 or budget.n_steps < limits.periods * period:
        return
    stall_ms = median_low(wait.per_rank["stall_ms"].to_list())
    floor = max(limits.stall_ms, limits.stall_share * budget.step_ms)
    share = stall_ms / budget.step_ms
    if stall_ms < floor:
        return
    overhead = signals.get(PythonOverhead)
    stated = overhead.dataloader_workers if overhead is not None else None
    workers = stated or period
    needed = math.ceil(workers * budget.step_ms / max(budget.step_ms - stall_ms, 1e-9))
    yield Finding(
        title=f"loader waits spike every {period} steps: {workers} workers cannot keep up, {stall_ms:.1f} ms per "
        f"step ({share:.0%}) are lost",
        severity=severity_over_steps(share, budget, warning=limits.stall_share, critical=limits.critical_share),
        confidence=_confidence(budget, facts, stated, period),
        culprits=Culprits(where=wait.iterator or None),
        evidence=(
            Evidence("waits spike every", period, "steps", None, "distance between waits three times the usual"),
            Evidence("workers", workers, "", None, "as configured" if stated else "taken from the period"),
            Evidence("workers needed", needed, "", None, "workers x step / (step - stall)"),
            Evidence(
                "input stall", round(stall_ms, 3), "ms/step", round(floor, 3), f"{over_steps(budget)}, median rank"
            ),
            Evidence("input stall", round(share, 4), "of step", limits.stall_share, "stall / median step"),
        ),
        fix=(
            f"DataLoader(num_workers={needed}), if the host has that many CPU cores per rank",
            "make each batch cheaper: tokenise or decode offline, fewer augmentations on the CPU, pre-sharded files",
            "check that workers get the cores they need: container CPU limit (cpu.stat nr_throttled), pinning "
            "(`taskset -pc PID`), OMP_NUM_THREADS=1, cv2.setNumThreads(0)",
        ),
        verify=f"`ddiag analyze NEW_TRACES` over {3 * needed}+ steps: no spike period, input stall below "
        f"{limits.stall_share:.0%} of the step",
        cost=step_cost(stall_ms, budget, facts),
        why="a fixed period equal to the number of workers is what a queue drained by its consumer looks like",
        doubt=doubts(facts, "other work with the same period (logging, a metric every N steps) would look alike"),
    )


def _confidence(budget: StepBudget, facts: JobFacts, stated: int | None, period: int) -> Confidence:
    """Highest only when the job says it has as many workers as the period shows."""
    measured = confidence_for(budget, facts, host_timed=True)
    return measured if stated == period or measured is Confidence.LOW else Confidence.MEDIUM
