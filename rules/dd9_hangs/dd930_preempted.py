"""The job was told to stop from outside: preemption, time limit, eviction or a person.

## Meaning
A scheduler, the kubelet or a person sent SIGTERM to the launchers of all nodes. SIGKILL half a minute later is the
launcher's or the scheduler's own.

## Impact
Work since the last checkpoint is lost. Nothing is broken.

## Diagnosis
A scheduler's line (PREEMPTION, TIME LIMIT, Evicted) or "Received SIGTERM death signal" on the agents, and no failure
before it.

## Mitigation
Save on a signal that comes earlier, requeue, or ask for more time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Deaths, Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View

RULE = Rule(
    id="DD930",
    root_cause="RC-30",
    needs=(Deaths, Events),
    capture="sacct -j JOB -o State,ExitCode,End, kubectl get events, the agents' logs of all nodes",
    symptom="the whole job dies at once, without an error",
    evidence="SIGTERM to all agents within a second, a scheduler's line, and no earlier failure",
    applies=lambda signals: (deaths := signals.get(Deaths)) is not None and deaths.preempted,
)
_BY = {
    "preemption": "was preempted",
    "time_limit": "reached its time limit",
    "user": "was cancelled",
    "Evicted": "was evicted",
    "Preempted": "was preempted",
    "Preempting": "was preempted",
    "DeadlineExceeded": "reached its deadline",
}


@dataclass(frozen=True)
class Limits:
    """A signal is one; there is nothing to set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    deaths, events = signals[Deaths], signals[Events]
    orders = events.of("slurm.cancelled", "slurm.time_limit", "k8s.pod_ended")
    received = [e for e in events.of("launcher.signal") if e.integer("signal") in (15, 1)]
    reasons = [e.word("reason") or "time_limit" for e in orders]
    how = next((_BY[reason] for reason in reasons if reason in _BY), "was ended from outside")
    forced = [e for e in events.of("launcher.killing") if e.get("forced") is True]
    yield Finding(
        title=f"the job {how}: {_reached(len(received))}, and nothing had failed before",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if orders else Confidence.MEDIUM,
        culprits=Culprits(where="the scheduler" if orders else "whoever sent SIGTERM to the launcher"),
        evidence=tuple(
            Evidence(label, event.text[:160], "", None, event.source)
            for label, found in (("ordered", orders[:2]), ("received", received[:3]), ("ended by force", forced[:2]))
            for event in found
        ),
        fix=(
            "save when told: Slurm --signal=B:USR1@300 (or SIGTERM handler) and a checkpoint within that time",
            "requeue: Slurm --requeue, Kubernetes backoffLimit / restartPolicy, torchrun --max-restarts with resume",
            "ask for a longer limit or a partition that is not preempted",
        ),
        verify="sacct -j JOB -o State,ExitCode,End: the state is COMPLETED",
        why="the order to stop comes first, and SIGTERM is what it sends" if orders else "SIGTERM comes first",
        doubt="" if orders else "sacct or kubectl get events tells who sent it",
        state=State.CRASHED,
        began_ns=deaths.first[0].ts_ns,
    )


def _reached(count: int) -> str:
    return "SIGTERM reached its launcher" if count < 2 else f"SIGTERM reached {count} launchers"
