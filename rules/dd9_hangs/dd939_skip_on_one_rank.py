"""One rank skipped a step because of a NaN or Inf, the others did not: their collectives no longer match.

## Meaning
A program that looks at its own loss or gradients and then leaves out backward or the optimizer step must decide on all
ranks together. A rank that skips alone does not join the reductions the others wait in.

## Impact
The job hangs until the watchdog ends it.

## Diagnosis
The message of skipping appears on this rank only, before the hang.

## Mitigation
All-reduce the flag (MAX) before the branch, or skip on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Events, Stall
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, name_ranks
from ddiag.rulekit.values import began, ranks_of

RULE = Rule(
    id="DD939",
    root_cause="RC-39",
    needs=(Events,),
    optional=(Stall, JobFacts),
    capture="the logs of all ranks with their rank in each line (torchrun --tee 3, or one file per rank)",
    symptom="hang after 'NaN loss, skipping' on one rank",
    evidence="the skip message on the ranks that are behind, and on no other",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("trainer.nan_skip"),
)


@dataclass(frozen=True)
class Limits:
    most_share: float = 0.5
    """Of the ranks at most may have skipped: when all do, nobody is left waiting."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, stall, facts = signals[Events], signals.get(Stall), signals.get(JobFacts)
    skips = [event for event in events.of("trainer.nan_skip") if event.rank is not None]
    hangs = events.of("c10d.watchdog_timeout", "gloo.timeout", "c10d.heartbeat")
    if not (hangs or (stall is not None and stall.verdict != "running")):
        return
    ranks = ranks_of(skips)
    everybody = {*(facts.ranks if facts is not None else ()), *ranks_of(events.all)}
    if not ranks:
        yield Abstain(
            "a step was skipped for a NaN before the hang, but the log does not say by which rank", RULE.capture
        )
        return
    waiting = set(ranks_of(hangs)) - set(ranks)
    if not waiting and stall is not None:
        waiting = set(stall.victims) - set(ranks)
    if not waiting or len(ranks) > limits.most_share * len(everybody):
        return
    if stall is not None and stall.culprits and not set(stall.culprits) & set(ranks):
        return
    yield Finding(
        title=f"{name_ranks(ranks)} skipped a step for a value that is not finite, and the others did not",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if stall is not None and set(stall.culprits) == set(ranks) else Confidence.MEDIUM,
        culprits=Culprits(ranks=ranks),
        victims=tuple(sorted(waiting)),
        evidence=tuple(Evidence(f"rank {event.rank}", event.text[:120], "", None, event.source) for event in skips[:6]),
        fix=(
            "decide together: flag = torch.tensor(not torch.isfinite(loss).all()); dist.all_reduce(flag, op=MAX); then "
            "all ranks skip, or none",
            "or keep the step and zero the gradients on that rank: loss = torch.nan_to_num(loss) * 0",
            "find the batch: log its ids on that rank",
        ),
        verify="grep the message by rank: it appears on all ranks or on none; last completed sequence numbers agree",
        state=State.STALLED,
        began_ns=began(skips),
        why=f"only {name_ranks(ranks)} said so, and {name_ranks(waiting)} wait in a collective",
        doubt="" if stall is not None and stall.culprits else "Flight Recorder dumps show whether its count is behind",
    )
