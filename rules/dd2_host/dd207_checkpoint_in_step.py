"""A checkpoint is written while training stands still.

## Meaning
The save runs on the training thread: gathering state, copying it to the host and writing it out all happen before the
next step may begin.

## Impact
Each save costs its whole duration on all ranks. How much of the job that is depends on how often it happens. A save
near the process group's timeout (10 minutes with NCCL) ends in an abort of the ranks that wait for rank 0.

## Diagnosis
A save (`torch.save`, `torch.distributed.checkpoint`, `save_checkpoint`) inside a recorded step, and its length. A
recording of the whole run also tells how often, and so what part of the run it takes.

## Mitigation
Asynchronous, sharded checkpoints: every rank writes its own part in the background from a staged copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, PythonOverhead, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.cost import severity_for, step_cost
from ddiag.rulekit.quality import confidence_for, doubts

RULE = Rule(
    id="DD207",
    root_cause="RC-31",
    needs=(JobFacts, StepBudget, PythonOverhead),
    capture="profile the steps around a save with torch.profiler; with_stack=True shows torch.save",
    symptom="training stops for seconds to minutes every save_steps",
    evidence="a save inside a recorded step, and its duration",
    references=("https://docs.pytorch.org/docs/stable/distributed.checkpoint.html",),
)


@dataclass(frozen=True)
class Limits:
    save_ms: float = 200.0
    """Shorter saves are of small state and not worth a line."""
    long_ms: float = 30_000.0
    """From here a save hurts at usual intervals and comes within reach of timeouts: a warning."""
    tolerated_share: float = 0.05
    """Part of the run that saves may take; from it follows how often saving is affordable."""
    critical_share: float = 0.25
    """From here saving is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, python = signals[JobFacts], signals[StepBudget], signals[PythonOverhead]
    if python.checkpoint_ms_per_step is not None:
        yield from _over_the_run(facts, budget, python, limits)
        return
    save_ms = python.checkpoint_ms
    if save_ms < limits.save_ms or budget.step_ms <= 0:
        return
    interval = math.ceil(save_ms / (limits.tolerated_share * budget.step_ms))
    yield Finding(
        title=f"a checkpoint stops training for {save_ms / 1000:.1f} s; it costs over {limits.tolerated_share:.0%} of "
        f"the run if saved more often than every {interval:,} steps",
        severity=Severity.WARNING if save_ms >= limits.long_ms else Severity.INFO,
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(where="checkpoint"),
        evidence=(
            Evidence("longest save", round(save_ms, 1), "ms", limits.save_ms, "span inside a step, worst rank"),
            Evidence("saves in steps", round(save_ms / budget.step_ms, 1), "steady steps", None, "save / median step"),
            Evidence(
                "affordable interval", interval, "steps", None, f"save / ({limits.tolerated_share:.0%} of a step)"
            ),
        ),
        fix=_fixes(interval),
        verify="time the save call on every rank; `ddiag analyze NEW_TRACES` around a save must show it much shorter",
        why="the save's span lies inside a step, between device work before and after it",
        doubt=doubts(facts, "how often the job saves is not in the evidence, so the cost per step is not stated"),
    )


def _over_the_run(
    facts: JobFacts, budget: StepBudget, python: PythonOverhead, limits: Limits
) -> Iterator[Finding | Abstain]:
    """A recording knows how often: judged by the part of the run that saving takes."""
    share, per_step_ms = python.checkpoint_share or 0.0, python.checkpoint_ms_per_step or 0.0
    long_save = python.checkpoint_ms >= limits.long_ms
    if budget.step_ms <= 0 or not (share >= limits.tolerated_share or long_save):
        return
    interval = math.ceil(python.checkpoint_ms / (limits.tolerated_share * budget.step_ms))
    severity = severity_for(share, warning=limits.tolerated_share, critical=limits.critical_share)
    yield Finding(
        title=f"checkpoints take {share:.0%} of the run: {python.checkpoints or 0:,} saves of up to "
        f"{python.checkpoint_ms / 1000:.1f} s while training stands still",
        severity=Severity.WARNING if long_save and share < limits.tolerated_share else severity,
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(where="checkpoint"),
        evidence=(
            Evidence("saving", round(share, 4), "of the run", limits.tolerated_share, "all steps, worst rank"),
            Evidence("saving", round(per_step_ms, 3), "ms/step", None, "mean over all steps, worst rank"),
            Evidence("saves", python.checkpoints or 0, "", None, "steps with a save, worst rank"),
            Evidence("longest save", round(python.checkpoint_ms, 1), "ms", limits.long_ms, "one step, worst rank"),
        ),
        fix=_fixes(interval),
        verify="time the save call on every rank; `ddiag run` again: saving must be below "
        f"{limits.tolerated_share:.0%} of the run",
        cost=step_cost(per_step_ms, budget, facts),
        why="the training thread itself is inside the save, in steps of this run",
        doubt=doubts(facts, "a short run that ends with its only save overstates the share"),
    )


def _fixes(interval: int) -> tuple[str, ...]:
    return (
        "torch.distributed.checkpoint.async_save(state_dict, checkpoint_id=…) (2.4+; with pinned staging "
        "memory only the copy to the host stays in the step)",
        "save sharded: FSDP SHARDED_STATE_DICT or torch.distributed.checkpoint; DeepSpeed "
        "stage3_gather_16bit_weights_on_model_save: false; Megatron --async-save --ckpt-format torch_dist",
        f"save less often than every {interval:,} steps, to local NVMe first, and upload in the background",
    )
