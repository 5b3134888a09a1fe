"""Something of an earlier attempt is in the way: a port, a lock, a process.

## Meaning
The first start worked, the restart does not: the old process still holds the port, or a lock file was left behind.

## Impact
The new attempt fails at once (EADDRINUSE) or waits for ever (lock).

## Diagnosis
"Address already in use" for the store's port; a lock file that nobody holds.

## Mitigation
End what is left, remove the lock, take a free port each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.values import began, hosts_of

RULE = Rule(
    id="DD981",
    root_cause="RC-81",
    needs=(Events,),
    capture="ss -ltnp, ls /dev/shm, nvidia-smi and find ~/.cache -name lock on the node",
    symptom="restart fails, the first start worked; Address already in use",
    evidence="EADDRINUSE for the master's port, or a stale lock file",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("store.port_in_use"),
)


@dataclass(frozen=True)
class Limits:
    """A port is taken or not; there is nothing to set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals[Events]
    taken, locks = events.of("store.port_in_use"), events.of("log.stale_lock")
    ports = sorted({port for event in taken if (port := event.integer("port")) is not None})
    went_on = events.has("c10d.watchdog_timeout", "log.progress") and not events.has("launcher.child_failed")
    hosts = hosts_of(taken)
    where = f"port {', '.join(map(str, ports))}" if ports else "the master's port"
    yield Finding(
        title=f"{where} is taken{f' on {hosts[0]}' if hosts else ''}: an earlier attempt or another job holds it",
        severity=Severity.WARNING if went_on else Severity.CRITICAL,
        confidence=Confidence.MEDIUM if went_on else Confidence.HIGH,
        culprits=Culprits(hosts=hosts, where=where),
        evidence=tuple(
            Evidence("said", event.text[-160:], "", None, event.source) for event in (*taken[:3], *locks[:2])
        ),
        fix=(
            "end what holds it: ss -ltnp | grep PORT, then kill that process (a zombie of the last attempt?)",
            "let the launcher choose: torchrun --rdzv-backend=c10d --rdzv-endpoint=HOST:0 (one node: --standalone)",
            "clean up between attempts: processes on the GPUs, /dev/shm/nccl-*, ~/.cache/torch_extensions/**/lock",
        ),
        verify="ss -ltnp shows nobody on that port before the job starts",
        why="the operating system refused the port",
        doubt="two jobs on one node with the default port 29500 look the same",
        state=State.DEGRADED if went_on else State.CRASHED,
        began_ns=began(taken),
    )
