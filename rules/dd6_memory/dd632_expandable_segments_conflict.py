"""expandable_segments is on where something needs ordinary allocations.

## Meaning
Expandable segments map memory piece by piece. Sharing such a tensor with another process (DataLoader workers, CUDA IPC,
RL weight transfer) needs the system call pidfd_getfd (Linux 5.6 or later, not in gVisor) and a torch that supports it.

## Impact
The first shared tensor or peer access raises an error.

## Diagnosis
The error's own words.

## Mitigation
Switch the option off in that process, or a newer kernel and torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.values import began, ranks_of

RULE = Rule(
    id="DD632",
    root_cause="RC-78",
    needs=(Events,),
    capture="the full traceback, uname -r, and PYTORCH_CUDA_ALLOC_CONF of all processes",
    symptom="an error at the first shared tensor after enabling expandable_segments",
    evidence="pidfd_getfd not supported; tensors allocated with expandable_segments cannot be shared",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("cuda.expandable_conflict"),
)
WORDS = {
    "ipc": "tensors from expandable segments cannot be shared between processes here",
    "pidfd": "the kernel lacks pidfd_getfd, which sharing of expandable segments needs",
    "hook": "NCCL's tensor registration is switched off by expandable_segments",
    "driver": "this platform does not support expandable_segments",
}


@dataclass(frozen=True)
class Limits:
    stops: str = "ipc pidfd"
    """What raises; the others only switch something off."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = signals[Events].of("cuda.expandable_conflict")
    by_kind = {event.word("what"): event for event in found}
    kind = next((what for what in WORDS if what in by_kind), None)
    if kind is None:
        return
    stops = kind in limits.stops.split()
    ranks = ranks_of(found)
    yield Finding(
        title=WORDS[kind],
        severity=Severity.CRITICAL if stops else Severity.INFO,
        confidence=Confidence.HIGH,
        culprits=Culprits(ranks=ranks if len(ranks) == 1 else (), where="expandable_segments:True"),
        evidence=(Evidence("message", by_kind[kind].text[:160], "", None, by_kind[kind].source),),
        fix=(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False in the process that shares tensors (torch >= 2.10: "
            "PYTORCH_ALLOC_CONF)",
            "Linux >= 5.6 outside gVisor, and torch >= 2.6 where the sharing process supports it",
        ),
        verify="the same run with the option off passes the place of the error",
        state=State.CRASHED if stops else State.DEGRADED,
        began_ns=began(found),
        why="the text names the option or the system call it needs",
    )
