"""One process died first, and the others fail because they lost it.

## Meaning
A worker ended with an exception or by a signal of its own. Whoever waits for it then times out, loses its connection or
is ended by the launcher, and prints errors too: those are consequences.

## Impact
The job stops. The log is full of time-outs and closed connections that lead nowhere.

## Diagnosis
The first failure that is no time-out, closed connection, remote error or SIGTERM: by time where lines carry it, else by
the launcher's root-cause block or the order of lines in one file.

## Mitigation
Treat that error. A longer time-out only makes the others wait longer. `@record` on main() makes torchrun keep the
traceback of every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Death, Deaths
from ddiag.rulekit import Abstain, Confidence, Culprits, Finding, Rule, Severity, State, View, name_ranks
from ddiag.rulekit.death_finding import began_ns, culprits, evidence, victims, who

RULE = Rule(
    id="DD901",
    root_cause="RC-01",
    needs=(Deaths,),
    optional=(JobFacts,),
    capture="the logs of all ranks and launchers (torchrun --log-dir DIR --tee 3), dmesg -T of every node",
    symptom="NCCL timeout on all ranks but one; increasing the timeout does not help",
    evidence="the earliest failure in any rank's log is no watchdog line: an exception, a signal, an exit code",
    applies=lambda signals: (
        (deaths := signals.get(Deaths)) is not None
        and not deaths.preempted
        and (any(map(_ours, deaths.first)) or not deaths.first)
    ),
    explained_by=(
        "DD906", "DD907", "DD908", "DD909", "DD912", "DD913", "DD914", "DD915", "DD920", "DD921", "DD922", "DD924",
        "DD925", "DD926", "DD929", "DD930", "DD934", "DD937", "DD941", "DD943", "DD981", "DD1120", "DD632", "DD830",
        "DD451", "DD620", "DD626", "DD627", "DD628", "DD630", "DD633",
    ),
)  # fmt: skip
_OTHERS = ("cuda_oom", "cuda_error", "host_oom", "preempted")
"""Causes that other rules explain."""


@dataclass(frozen=True)
class Limits:
    same_error_share: float = 0.5
    """From this part of the known ranks with one and the same error, no rank is to blame but what they all run."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    deaths, facts = signals[Deaths], signals.get(JobFacts)
    if not deaths.first:
        yield Abstain(
            f"every failure in the evidence is that of a process that lost another ({deaths.cascade[0].what[:100]})",
            "the logs of the ranks and nodes that were not given: the first failure is in one of them",
        )
        return
    first = [death for death in deaths.first if _ours(death)]
    if len(first) < len(deaths.first) and deaths.ordered and not _ours(deaths.first[0]):
        return
    for same in _alike(first):
        yield _finding(same, deaths, facts, limits)


def _ours(death: Death) -> bool:
    return death.cause not in _OTHERS and death.what != "killed by SIGKILL"


def _alike(first: Sequence[Death]) -> list[list[Death]]:
    """Deaths of one error together, in order."""
    found: dict[tuple[str, str], list[Death]] = {}
    for death in first:
        found.setdefault((death.cause, death.what), []).append(death)
    return list(found.values())


def _finding(first: Sequence[Death], deaths: Deaths, facts: JobFacts | None, limits: Limits) -> Finding:
    ranks = sorted({death.rank for death in first if death.rank is not None})
    known = len(facts.ranks) if facts is not None else len(ranks)
    everybody = len(ranks) > 1 and len(ranks) >= limits.same_error_share * known
    vague = first[0].cause == "nccl_error" or everybody or not (deaths.ordered or len(deaths.first) == 1)
    guilty = Culprits(where=first[0].where) if vague else culprits(first)
    sure = deaths.ordered and not vague and first[0].cause != "unknown"
    return Finding(
        title=_title(first, ranks, deaths, everybody=everybody)[:220],
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM if deaths.ordered else Confidence.LOW,
        culprits=guilty,
        victims=victims(deaths, facts, ranks if vague else guilty.ranks) if not everybody else (),
        evidence=evidence(first, deaths),
        fix=_fix(first[0]),
        verify="grep -nE 'Traceback|Error|exitcode *: -|Xid' LOGS sorted by time: this one no longer comes first",
        why="the others' errors are those of processes that lost a peer or were ended by a launcher"
        if deaths.cascade
        else "it is the only failure of its own kind in the evidence",
        doubt=""
        if sure
        else "logs of ranks that were not given, or times that are not printed, may show an earlier one",
        state=State.CRASHED,
        began_ns=began_ns(first),
    )


def _title(first: Sequence[Death], ranks: Sequence[int], deaths: Deaths, *, everybody: bool) -> str:
    what = first[0].what
    place = f" in {first[0].where}" if first[0].where else ""
    if first[0].host and any(event.kind == "slurm.node_fail" for event in first[0].events):
        return f"host {first[0].host} failed, says Slurm, and its ranks died first"
    if everybody:
        return f"{name_ranks(ranks)} fail alike: {what}{place}"
    if not deaths.ordered and len(deaths.first) > 1:
        return f"{who(first[0])} failed, perhaps first: {what}{place}"
    if len(ranks) > 1:
        return f"{name_ranks(ranks)} died first: {what}{place}"
    return f"{who(first[0])} died first: {what}{place}"


def _fix(death: Death) -> tuple[str, ...]:
    common = (
        "wrap main() with torch.distributed.elastic.multiprocessing.errors.record: every rank's traceback is kept",
        "leave the time-out as it is, and TORCH_NCCL_ASYNC_ERROR_HANDLING=1 (the default): the others must end quickly",
    )
    if death.cause == "exception":
        return (f"fix the error{f' at {death.where}' if death.where else ''}: {death.what}"[:200], *common)
    if death.cause == "signal":
        return (
            "a core dump names the library: `ulimit -c unlimited`, python -X faulthandler, gdb python core",
            *common,
        )
    if death.cause == "nccl_error":
        return ("NCCL_DEBUG=INFO on all nodes: the WARN line before this error says what failed", *common)
    return ("read the end of that process's own log (torchrun --log-dir DIR --tee 3)", *common)
