"""One training process ended first, and took the job with it.

## Meaning
A rank was killed by a signal or ended with an error. Its peers then lose their connection to it and fail in turn, or
are ended by the launcher: what they print is an echo.

## Impact
The job is over (or, with restarts, begins anew from its last checkpoint). Raising timeouts or looking at the other
ranks' messages costs hours and explains nothing.

## Diagnosis
When each training process ended and how, seen from outside by `ddiag run`. Ranks that were ended by SIGTERM or SIGKILL
after the first end are the launcher's doing, and ranks whose exception is a lost connection are victims.

## Mitigation
Treat the first end: its exception, the kernel's log when it was killed, a native stack when it crashed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Stall
from ddiag.model.signals_recorded import Exits
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View, name_ranks
from ddiag.rulekit.finding import State

RULE = Rule(
    id="DD943",
    root_cause="RC-01",
    needs=(JobFacts, Exits),
    optional=(Stall,),
    capture="ddiag run -- COMMAND: it sees when each training process ends, and how",
    symptom="the job ends with an error on every rank; each says that it lost another",
    evidence="the first training process that ended with an error or by a signal",
    applies=lambda signals: signals.has(Exits),
)
Row = Mapping[str, Any]
_LOST_A_PEER = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|remote process (has )?exited|ncclremoteerror"
    r"|failed to recv|got 0 bytes|socket (was )?closed|peer closed|timed out waiting \d+ ?ms for (recv|send)"
    r"|store .*(unreachable|gone)|disconnected",
    re.IGNORECASE,
)
"""What a process says that lost another, whoever is to blame."""
_ENDED = frozenset({signal.SIGTERM, signal.SIGINT})
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS})


@dataclass(frozen=True)
class Limits:
    together_s: float = 1.0
    """Ends within this time of each other have no known order: an error may need a while to end its process."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    exits = signals[Exits]
    rows = exits.table.sort("end_ns", "rank", nulls_last=True).to_dicts()
    failed = [row for row in rows if row["signal"] or row["exit_code"] or row["exception"] or _vanished(row)]
    running = exits.exit_code is None
    if exits.asked_to_end or exits.exit_code == 0 or (running and (not failed or exits.started_again)):
        return
    unseen = sorted({*(row["rank"] for row in rows if row["end_ns"] is None and not row["closed"]), *exits.missing})
    first = _first(failed, limits, all_seen=not unseen)
    if len(first) == 1:
        found = _culprit(first[0], rows, exits, unseen)
        yield _called_something_else(found, signals.get(Stall))
    elif first:
        yield _together(first, rows, exits)
    elif not _stalled(signals.get(Stall)):
        yield _unseen(rows, exits, unseen)


def _called_something_else(found: Finding, stall: Stall | None) -> Finding:
    """Gloo aborts a process whose call does not fit those of its peers: then the calls are what to look at."""
    if stall is None or not stall.mismatch or not set(found.culprits.ranks) & set(stall.culprits):
        return found
    differs = Evidence("calls differ", stall.mismatch, "", None, f"call #{stall.seq} of {stall.group}")
    return replace(
        found,
        title=f"{found.title}, in a call that the other ranks make differently"[:220],
        evidence=(differs, *found.evidence),
        fix=(f"make the ranks issue the same call with the same sizes: {stall.mismatch}", *found.fix),
    )


def _stalled(stall: Stall | None) -> bool:
    """The job stood still before, and it is known for whom: then ends in which nobody is first are the echo of that."""
    return stall is not None and bool(stall.culprits)


def _first(failed: Sequence[Row], limits: Limits, *, all_seen: bool) -> list[Row]:
    """Who ended first by itself or by a signal, in order; several when their order is not certain."""
    own = [row for row in failed if not _lost_a_peer(row)]
    if not own:
        return []
    before, *others = own
    ended = before["signal"] in _ENDED or (before["signal"] == signal.SIGKILL and not before["out_of_memory_kills"])
    if ended and any(_seconds(row, before) > 0 for row in failed if _lost_a_peer(row)):
        return []  # the launcher ends the others once one has run out of time or lost a peer: nobody died by itself
    if _was_ended(before) and not (all_seen and not any(_was_ended(row) for row in others)):
        return []  # the launcher ends every rank when it is ended itself, or when one fails that we did not see
    near = [row for row in others if _seconds(before, row) <= limits.together_s and not _was_ended(row)]
    if not _vanished(before):
        near = [row for row in near if not _vanished(row)]  # the launcher ended them
    return [before, *near]


def _vanished(row: Row) -> bool:
    """It was seen to end, not how, and its interpreter did not: a signal, or an exit past it."""
    return row["end_ns"] is not None and not row["closed"] and row["signal"] is None and row["exit_code"] is None


def _was_ended(row: Row) -> bool:
    """Somebody else ended it, as launchers do with what is left of a job."""
    return row["signal"] in _ENDED or row["exception"] == "KeyboardInterrupt"


def _seconds(before: Row, row: Row) -> float:
    """From one end to the other; 0 when that is not known."""
    known = before["end_ns"] is not None and row["end_ns"] is not None
    return (row["end_ns"] - before["end_ns"]) / 1e9 if known else 0.0


def _lost_a_peer(row: Row) -> bool:
    return _LOST_A_PEER.search(f"{row['exception'] or ''}: {row['message'] or ''}") is not None


def _culprit(row: Row, rows: Sequence[Row], exits: Exits, unseen: Sequence[int]) -> Finding:
    others = [one for one in rows if one is not row]
    sure = not unseen and row["end_ns"] is not None and not _vanished(row)
    said = f"{row['exception']}: {row['message']}" if row["exception"] else ""
    how = said if said and not row["signal"] else _how(row)
    return Finding(
        title=f"rank {row['rank']} ended first: {how}"[:220],
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        culprits=_culprits([row]),
        victims=tuple(sorted(one["rank"] for one in others)),
        evidence=(*_ends(row, others), *_job(exits)),
        fix=_fix(row),
        verify="`ddiag run` again: the job ends with exit code 0, or another rank is the first",
        why="every training process was watched from outside, and this one ended before the others",
        doubt=""
        if sure
        else f"no end was seen of {name_ranks(unseen or [row['rank']])}: if another came earlier, that is the first",
        state=State.CRASHED,
        began_ns=row["end_ns"],
    )


def _together(first: Sequence[Row], rows: Sequence[Row], exits: Exits) -> Finding:
    """Several at once: either all have the same trouble, or nobody can say who began."""
    ranks = [row["rank"] for row in first]
    same = {(row["exception"], row["message"], row["where"]) for row in first}
    known = len(same) == 1 and first[0]["exception"]
    what = f"all with {first[0]['exception']}: {first[0]['message']}" if known else "and none of them clearly first"
    return Finding(
        title=f"{name_ranks(sorted(ranks))} ended within a second, {what}"[:220],
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM if known else Confidence.LOW,
        culprits=Culprits(where=first[0]["where"] if known else None),
        victims=tuple(sorted(row["rank"] for row in rows if row["rank"] not in ranks)),
        evidence=(*(item for row in first[:4] for item in _end(row)), *_job(exits)),
        fix=_fix(first[0]) if known else ("compare the first errors of these ranks' own outputs (torchrun --tee 3)",),
        verify="`ddiag run` again: the job ends with exit code 0",
        why="these processes ended on their own, not by the launcher",
        doubt="the order of ends this near to each other does not tell who began",
        state=State.CRASHED,
        began_ns=first[0]["end_ns"],
    )


def _unseen(rows: Sequence[Row], exits: Exits, silent: Sequence[int]) -> Finding:
    """The job failed, but what was seen of its ranks does not say through whom."""
    ends = [row for row in rows if row["signal"] or row["exit_code"]]
    one = len(silent) == 1
    who = "no training process was seen to fail first"
    if silent and ends:
        who = f"{name_ranks(silent)} left no sign of {'its' if one else 'their'} end, and the others failed after it"
    return Finding(
        title=f"the job failed{'' if exits.exit_code is None else f' with exit code {exits.exit_code}'}: {who}",
        severity=Severity.CRITICAL,
        confidence=Confidence.LOW,
        culprits=_culprits([row for row in rows if row["rank"] in silent]) if one and ends else Culprits(),
        evidence=(*(item for row in ends[:4] for item in _end(row)), *_job(exits)),
        fix=(
            "read the first error in the job's own output (torchrun: --log-dir DIR --tee 3 keeps one file per rank)",
            "give ddiag the job's logs and dmesg as well: `ddiag analyze RUN LOGS dmesg.txt`",
        ),
        verify="`ddiag run` again: the job ends with exit code 0",
        why="the command returned an error",
        doubt="the launcher or a command around the training may have failed, not a rank",
        state=State.CRASHED,
    )


def _culprits(rows: Sequence[Row]) -> Culprits:
    hosts = sorted({row["host"] for row in rows if row["host"]})
    where = rows[0]["where"] if len(rows) == 1 else None
    return Culprits(ranks=tuple(sorted(row["rank"] for row in rows)), hosts=tuple(hosts), where=where)


def _how(row: Row) -> str:
    if _vanished(row) and not row["exception"]:
        return "it was killed, or left past the interpreter's end (how was not seen)"
    if not row["signal"]:
        return "an exception that nobody caught" if row["exit_code"] is None else f"exit code {row['exit_code']}"
    name = signal.Signals(row["signal"]).name if row["signal"] in set(signal.Signals) else f"signal {row['signal']}"
    if row["signal"] == signal.SIGKILL and row["out_of_memory_kills"]:
        return f"killed by {name} while the kernel killed for want of memory"
    return f"killed by {name}"


def _end(row: Row) -> Iterator[Evidence]:
    yield Evidence(f"rank {row['rank']}", _how(row), "", None, f"pid {row['pid']}{_on(row)}")
    if row["exception"]:
        yield Evidence(
            f"rank {row['rank']}: exception", f"{row['exception']}: {row['message']}", "", None, row["where"] or ""
        )


def _on(row: Row) -> str:
    return f" on {row['host']}" if row["host"] else ""


def _ends(row: Row, others: Sequence[Row]) -> Iterator[Evidence]:
    yield from _end(row)
    if row["signal"] == signal.SIGKILL and row["out_of_memory_kills"]:
        yield Evidence("kills for want of memory", row["out_of_memory_kills"], "on its host", None, "oom_kill counters")
    for one in others[:3]:
        if one["end_ns"] is None or not (one["signal"] or one["exit_code"]):
            continue
        later_s = _seconds(row, one)
        label = "lost its peer" if _lost_a_peer(one) else _how(one)
        yield Evidence(f"rank {one['rank']} ended later", round(later_s, 3), "s", None, label)


def _job(exits: Exits) -> tuple[Evidence, ...]:
    code = exits.exit_code
    return () if code is None else (Evidence("exit code of the job", code, "", 0, "run.json"),)


def _fix(row: Row) -> tuple[str, ...]:
    """What to do about this kind of end."""
    if row["exception"]:
        where = f" at {row['where']}" if row["where"] else ""
        return (f"fix the {row['exception']}{where}; messages of the other ranks are its echo",)
    if row["signal"] == signal.SIGBUS:
        return (
            "SIGBUS: mostly a full /dev/shm (`df /dev/shm`): docker --shm-size=16g, Kubernetes emptyDir medium: Memory",
        )
    if row["signal"] in _CRASHES:
        return (
            "a crash in native code: run with PYTHONFAULTHANDLER=1 and `ulimit -c unlimited`, open the core with gdb",
            "check dmesg for XID and segfault lines at that moment; try the last extension or driver that was changed",
        )
    if row["signal"] == signal.SIGKILL:
        return (
            "dmesg -T | grep -i -E 'killed process|oom': if it names this pid, the host ran out of memory (fewer "
            "loader workers, no growing caches, a higher memory limit of the container)",
            "otherwise somebody killed it: the scheduler's memory limit or preemption, `kill -9`",
        )
    if row["signal"]:
        return ("find who sent the signal: scheduler, preemption, an administrator",)
    return (
        "read this rank's own output (torchrun: --log-dir DIR --tee 3); it ended itself with this code",
        "without a traceback: look for sys.exit(), os._exit() and libraries that end the process",
    )
