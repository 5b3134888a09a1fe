"""The script itself takes time between an update and the next batch.

## Meaning
After the optimizer's step and before the next batch is asked for, the training thread is busy with something that is
neither training nor saving, evaluating or logging as the recorder knows them: metrics computed in Python, printing,
files, sleeps, copies of the model.

## Impact
It is added to every step of every rank.

## Diagnosis
Time of the training thread between the optimizer (or what follows it) and the next batch that no phase covers, on all
ranks alike. On a device this may be waiting for results and is left to a trace.

## Mitigation
Do it less often, or beside training; name it, so that it shows as what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLoad, JobFacts, StepBudget
from ddiag.model.signals_recorded import UnmarkedTime
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, View, severity_for, step_cost
from ddiag.rulekit.quality import over_steps
from ddiag.rulekit.skew import ALONE, contended

RULE = Rule(
    id="DD210",
    root_cause="RC-108",
    needs=(JobFacts, StepBudget, UnmarkedTime),
    optional=(HostLoad,),
    capture="ddiag run: its phases tell what the training thread did",
    symptom="steps are longer than forward, backward and optimizer together",
    evidence="a tenth of the step after the optimizer and before the next batch, in no phase, on every rank",
    applies=lambda signals: (
        signals.has(UnmarkedTime) and (facts := signals.get(JobFacts)) is not None and facts.device_kind == "cpu"
    ),
)


@dataclass(frozen=True)
class Limits:
    share: float = 0.10
    """Of the step, on the rank with the median of it: one rank alone is late, which is another matter."""
    critical_share: float = 0.40
    least_ms: float = 5.0
    """Below it the bookkeeping of a framework explains it."""
    contended_runnable: float = 1.2
    """Threads that want to run per CPU from which any code takes longer …"""
    contended_waiting: float = 0.2
    """… or the part of the time in which somebody waited for a CPU."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, unmarked = signals[JobFacts], signals[StepBudget], signals[UnmarkedTime]
    spent = sorted(unmarked.ms_per_step.values())
    ms = spent[(len(spent) - 1) // 2]
    share = ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if ms < limits.least_ms or share < limits.share:
        return
    crowd = contended(
        facts, signals.get(HostLoad), runnable=limits.contended_runnable, waiting=limits.contended_waiting
    )
    if crowd:
        yield Abstain(f"{share:.0%} of the step is in no phase, but {crowd}: everything takes longer there", ALONE)
        return
    yield Finding(
        title=f"the script takes {ms:.1f} ms per step ({share:.0%}) of its own after {unmarked.after}, on every rank",
        severity=severity_for(share, warning=limits.share, critical=limits.critical_share),
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where=f"between {unmarked.after} and the next batch"),
        evidence=(
            Evidence("in no phase", round(ms, 3), "ms/step", limits.least_ms, over_steps(budget)),
            Evidence("in no phase", round(share, 4), "of step", limits.share, f"after {unmarked.after}"),
            Evidence("least and most", f"{spent[0]:.1f} to {spent[-1]:.1f}", "ms/step", None, "over ranks"),
        ),
        fix=(
            "look at the lines between optimizer.step() and the next batch: metrics, .tolist(), prints, files, sleeps, "
            "deep copies; do them every N steps",
            'name what stays: `with ddiag.record().phase("logging"):` (or evaluation, checkpoint)',
            "find it by name: `ddiag run --profile-steps 20:22`, or `py-spy record -d 30 --pid PID`",
        ),
        verify=f"`ddiag run` again: less than {limits.share:.0%} of the step is in no phase",
        cost=step_cost(ms, budget, facts),
        why="the recorder marks input, forward, backward, optimizer, clipping, saving, evaluation and logging, and the "
        "training thread was in none of them",
        doubt="loaders that are none of torch's are not seen: their waiting is in no phase either",
    )
