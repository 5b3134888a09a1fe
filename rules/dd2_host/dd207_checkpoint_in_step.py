"""A checkpoint is written while training stands still.

## Meaning
The save runs on the training thread: gathering state, copying it to the host and writing it out all happen before the
next step may begin.

## Impact
Each save costs its whole duration on all ranks. How much of the job that is depends on how often it happens. A save
near the process group's timeout (10 minutes with NCCL) ends in an abort of the ranks that wait for rank 0.

## Diagnosis
A save (`torch.save`, `torch.distributed.checkpoint`, `save_checkpoint`) inside a recorded step, and its length.

## Mitigation
Asynchronous, sharded checkpoints: every rank writes its own part in the background from a staged copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, PythonOverhead, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, Severity, View
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


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, save_ms = signals[JobFacts], signals[StepBudget], signals[PythonOverhead].checkpoint_ms
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
        fix=(
            "torch.distributed.checkpoint.async_save(state_dict, checkpoint_id=…) (2.4+; with pinned staging "
            "memory only the copy to the host stays in the step)",
            "save sharded: FSDP SHARDED_STATE_DICT or torch.distributed.checkpoint; DeepSpeed "
            "stage3_gather_16bit_weights_on_model_save: false; Megatron --async-save --ckpt-format torch_dist",
            f"save less often than every {interval:,} steps, to local NVMe first, and upload in the background",
        ),
        verify="time the save call on every rank; `ddiag analyze NEW_TRACES` around a save must show it much shorter",
        why="the save's span lies inside a step, between device work before and after it",
        doubt=doubts(facts, "how often the job saves is not in the evidence, so the cost per step is not stated"),
    )
