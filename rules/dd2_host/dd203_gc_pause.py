"""Python's garbage collector stops the training thread in the middle of steps.

## Meaning
A full collection walks every Python object and holds the interpreter for tens of milliseconds to over a second. Each
rank collects when its own counters say so, hence a different rank each time.

## Impact
While one rank collects, all others wait for it in the next collective; with many ranks nearly every step meets a pause.

## Diagnosis
Recorded collector runs inside steady steps (PyTorch 2.9+ can record them), or Python frames of the `gc` module. Without
such a record, a random host gap without any call is the sign (DD204, DD504).

## Mitigation
Collect on all ranks at the same step: switch the automatic collector off and call it on a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, PythonOverhead, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, name_ranks, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps

RULE = Rule(
    id="DD203",
    root_cause="RC-49",
    needs=(JobFacts, StepBudget, PythonOverhead),
    capture="torch 2.9+: torch.profiler.profile(with_stack=True, experimental_config="
    "torch._C._profiler._ExperimentalConfig(record_python_gc_info=True))",
    symptom="steps jitter, on a different rank each time, and the more ranks the worse",
    evidence="garbage collections inside steady steps",
    references=("https://github.com/pytorch/torchtitan/pull/148",),
)


@dataclass(frozen=True)
class Limits:
    pause_share: float = 0.02
    """Collector time / step for a finding; young generations cost far less."""
    warning_share: float = 0.05
    """From here it is a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    pause_ms: float = 1.0
    """Mean per step below which nothing is won."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, overhead = signals[JobFacts], signals[StepBudget], signals[PythonOverhead]
    pause_ms = overhead.gc_ms_per_step
    share = pause_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if pause_ms < limits.pause_ms or share < limits.pause_share:
        return
    ranks = tuple(overhead.gc_ranks)
    some = bool(ranks) and set(ranks) != set(facts.ranks)
    who = f" on {name_ranks(ranks)}" if some else ""
    yield Finding(
        title=f"garbage collection{who} takes {pause_ms:.1f} ms per step ({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.warning_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(ranks=ranks if some else (), where="Python garbage collector"),
        victims=tuple(sorted(set(facts.ranks) - set(ranks))) if some else (),
        evidence=(
            Evidence("garbage collection", round(pause_ms, 3), "ms/step", limits.pause_ms, over_steps(budget)),
            Evidence("garbage collection", round(share, 4), "of step", limits.pause_share, "time / median step"),
            Evidence("ranks that collected", len(ranks), f"of {len(facts.ranks)}", None, name_ranks(ranks)),
        ),
        fix=(
            "gc.disable() before the loop, then gc.collect(1) every 50 to 1000 steps on all ranks at the same step "
            "(torchtitan: training.gc_freq; Megatron: --manual-gc --manual-gc-interval 100)",
            "gc.collect(); gc.freeze() once after model, optimizer and data set are built: collections then skip them",
            "break reference cycles that hold tensors (closures, stored exceptions): they make collections needed",
        ),
        verify="`ddiag analyze NEW_TRACES`: garbage collection below "
        f"{limits.pause_share:.0%} of the step; watch host memory for 1000 steps, as cycles now live longer",
        cost=step_cost(pause_ms, budget, facts),
        why="collections lie inside steady steps of the training thread",
        doubt=doubts(facts, "a short capture may have met an unusually large collection"),
    )
