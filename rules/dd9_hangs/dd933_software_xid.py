"""The program made the GPU fault: Xid 13, 31 and their like are errors of kernels, not of boards.

## Meaning
A kernel read or wrote an illegal address, hit an assertion or hung. The driver reports it with the program's pid. Xid
43 and 45 only say that channels were taken down afterwards, because of that, or because the process ended.

## Impact
The processes with the fault die; the rest of the job follows. Replacing boards changes nothing.

## Diagnosis
These codes on several boards, with the pids of one job, and no hardware code (48, 79, 94, …) on them. Xid 43 and 45
alone are no cause at all.

## Mitigation
Find the kernel: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer; look at index and embedding ranges and at custom kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events
from ddiag.model.xids import SECONDARY, SOFTWARE
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.faults import (
    actions,
    boards,
    codes_in_words,
    hardware_boards,
    nvlink_boards,
    repeating_board,
    with_nature,
)
from ddiag.rulekit.proof import lines, name_hosts
from ddiag.rulekit.values import began, hosts_of

RULE = Rule(
    id="DD933",
    root_cause="RC-33",
    needs=(Events,),
    optional=(Placement,),
    capture="dmesg -T of every node, with the pids of the job",
    symptom="Xid 31 or 13 in dmesg, and somebody asks for new boards",
    evidence="program codes (13, 31 …) with the job's pids, no hardware code on these boards",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("kernel.xid"),
    explained_by=("DD907", "DD922", "DD934"),
    references=("https://docs.nvidia.com/deploy/xid-errors/",),
)


@dataclass(frozen=True)
class Limits:
    sure_boards: int = 2
    """Boards with the same code in one job from which it is certainly the program."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals[Events]
    broken = {(board.host, board.bus_id) for board in (*hardware_boards(events), *nvlink_boards(events))}
    soft = [board for board in with_nature(boards(events), SOFTWARE) if (board.host, board.bus_id) not in broken]
    if soft and repeating_board(events) is None:
        seen = tuple(event for board in soft for event in board.events)
        codes = tuple(dict.fromkeys(code for board in soft for code in board.codes))
        many = len(soft) >= limits.sure_boards
        hosts = hosts_of(seen)
        yield Finding(
            title=f"a kernel of the program faulted on {len(soft)} GPU{'s' if len(soft) > 1 else ''}"
            f"{f' of {name_hosts(hosts)}' if hosts else ''}: {codes_in_words(codes[:2])}",
            severity=Severity.CRITICAL,
            confidence=Confidence.HIGH if many else Confidence.MEDIUM,
            culprits=Culprits(where="a CUDA kernel of the job"),
            evidence=(*lines("kernel", seen), *_secondary(events)),
            fix=(*actions(codes), "keep the boards: check index and embedding ranges, custom and compiled kernels"),
            verify="compute-sanitizer --tool memcheck on one rank names the kernel; with it fixed, dmesg stays quiet",
            why="these codes are raised for what a program's kernel did"
            + (", and they came on several boards of one job" if many else ""),
            doubt="" if many else "when the same board faults in other jobs too, it is the board",
            state=State.CRASHED,
            began_ns=began(seen),
        )
        return
    only = with_nature(boards(events), SECONDARY)
    if only and not broken and not soft:
        seen = tuple(event for board in only for event in board.events)
        yield Finding(
            title=f"{codes_in_words(only[0].codes[:1])}: no fault of the boards",
            severity=Severity.INFO,
            confidence=Confidence.HIGH,
            evidence=lines("kernel", seen),
            fix=("look for what ended the processes: their own logs, the launcher, the out-of-memory killer",),
            verify="the same line comes whenever a process with a CUDA context is killed",
            why="Xid 43 and 45 follow the end of a process or another Xid; they are never the cause",
            began_ns=began(seen),
        )


def _secondary(events: Events) -> tuple[Evidence, ...]:
    after = [event for board in with_nature(boards(events), SECONDARY) for event in board.events]
    return (Evidence("lines that only follow (Xid 43, 45)", len(after), "lines"),) if after else ()
