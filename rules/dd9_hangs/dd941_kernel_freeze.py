"""A process hangs in the kernel: a file server that does not answer, a driver that does not return.

## Meaning
A task in state D cannot be interrupted, not even by SIGKILL. NFS and other network file systems, disks and GPU drivers
are the usual reasons.

## Impact
Its rank makes no progress, the launcher cannot end it, and the node may have to be rebooted.

## Diagnosis
The kernel's "blocked for more than 120 seconds", "nfs: server … not responding", or a stack with nfs_wait, rpc_wait.

## Mitigation
The storage or the driver first; drain the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, Stacks, Stall
from ddiag.rulekit import Abstain, Confidence, Culprits, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import hosts_among, lines, name_hosts
from ddiag.rulekit.values import began, ranks_of

RULE = Rule(
    id="DD941",
    root_cause="RC-41",
    needs=(Events,),
    optional=(Placement, Stall, Stacks),
    capture="dmesg -T, `ps -eo pid,stat,wchan:32,cmd | awk '$2~/D/'` and /proc/PID/stack of the node",
    symptom="one node does not react, kill -9 has no effect",
    evidence="hung_task lines, NFS server not responding, processes in state D",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and events.has("kernel.hung_task", "kernel.nfs", "process.uninterruptible")
    ),
)
_SILENT = ("c10d.watchdog_timeout", "gloo.timeout", "c10d.heartbeat", "store.wait_timeout")


@dataclass(frozen=True)
class Limits:
    """A task that the kernel calls blocked is; there is nothing to set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, placement = signals[Events], signals.get(Placement)
    silent = _unanswered(events.of("kernel.nfs"))
    blocked = [*events.of("kernel.hung_task"), *events.of("process.uninterruptible")]
    seen = [*blocked, *silent]
    if not seen:
        return
    stalled = events.has(*_SILENT) or signals.get(Stall) is not None
    hosts = hosts_among(seen, placement)
    ranks = _ranks(blocked, placement)
    servers = sorted({event.word("server") for event in silent if event.word("server")})
    cause = f"file server {', '.join(servers)} does not answer" if servers else "tasks do not return from the kernel"
    yield Finding(
        title=f"{name_hosts(hosts)}: {cause} ({_longest(blocked)})",
        severity=Severity.CRITICAL if stalled else Severity.WARNING,
        confidence=Confidence.HIGH if blocked and (ranks or len(hosts) == 1) else Confidence.MEDIUM,
        culprits=Culprits(ranks=ranks, hosts=hosts, where=f"file server {servers[0]}" if servers else None),
        victims=tuple(sorted(set(ranks_of(events.of(*_SILENT))) - set(ranks))),
        evidence=(*lines("kernel", blocked, 4), *lines("file server", silent, 2)),
        fix=(
            "repair what it waits for: the file server and its network (nfsstat, mount), or the disk",
            "a stack in uvm_ or nvidia_ functions: the GPU or its driver; reset the GPU or reboot",
            "drain the node; checkpoints and data on storage that answers",
        ),
        verify="no process of the job in state D: ps -eo pid,stat,wchan:32,cmd; no new line in dmesg -T",
        why="the kernel itself says that the task does not come back",
        state=State.STALLED if stalled else State.DEGRADED,
        began_ns=began(seen),
    )


def _unanswered(seen: Sequence[Event]) -> list[Event]:
    """Complaints about servers that did not come back."""
    back = {event.word("server") for event in seen if event.get("ok") is True}
    return [event for event in seen if event.get("ok") is not True and event.word("server") not in back]


def _ranks(blocked: Sequence[Event], placement: Placement | None) -> tuple[int, ...]:
    """Ranks whose process is blocked, where pids tell."""
    known = set(ranks_of(blocked))
    if placement is not None:
        for event in blocked:
            known |= {seat.rank for seat in placement.of_process(event.host, event.integer("pid"))}
    return tuple(sorted(known))


def _longest(blocked: Sequence[Event]) -> str:
    seconds = max((event.integer("seconds") or 0 for event in blocked), default=0)
    return f"{len(blocked)} tasks blocked" + (f" for {seconds} s and more" if seconds else "")
