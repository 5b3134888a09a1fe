"""One finding from one stall: what all rules about hangs say in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddiag.model.signals import Signals
from ddiag.model.signals_incident import Stall
from ddiag.rulekit.cost import name_ranks
from ddiag.rulekit.finding import Confidence, Culprits, Evidence, Finding, Severity, State

CAPTURE = (
    "Flight Recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1), the log of every "
    "rank, or ddiag run -- COMMAND"
)
RUNNING = "dumps taken of a job that runs look alike: take two, ten seconds apart, and see whether its numbers move"
CAUSES = (
    "DD901", "DD906", "DD907", "DD908", "DD909", "DD910", "DD911", "DD912", "DD913", "DD914", "DD915", "DD920", "DD921",
    "DD922", "DD925", "DD926", "DD929", "DD930", "DD934", "DD937", "DD939", "DD941", "DD943",
    "DD626", "DD627", "DD628", "DD630", "DD632",
)  # fmt: skip
"""Rules whose finding explains a stall: a death, a broken device, link, network or set-up."""
_ORIGINS = {
    "flight": "Flight Recorder",
    "ring": "calls that ddiag recorded",
    "watchdog": "words of NCCL's watchdog",
    "desync": "torch's desync report",
    "ras": "NCCL's RAS",
    "stack": "stacks",
}


def stalls_for(*causes: str) -> Callable[[Signals], bool]:
    """For ``Rule.applies``: there is a stall, and it looks like one of *causes*."""

    def applies(signals: Signals) -> bool:
        stall = signals.get(Stall)
        return stall is not None and stall.cause in causes

    return applies


def stall_finding(
    stall: Stall,
    title: str,
    fix: tuple[str, ...],
    verify: str,
    *,
    more: Iterable[Evidence] = (),
    doubt: str = "",
    severity: Severity = Severity.CRITICAL,
) -> Finding:
    """A finding with the culprits, victims and numbers of *stall*."""
    return Finding(
        title=title,
        severity=severity,
        confidence=Confidence(stall.confidence),
        culprits=Culprits(ranks=stall.culprits, groups=_groups(stall), where=stall.where),
        victims=stall.victims,
        evidence=(*_rows(stall), *more),
        fix=fix,
        verify=verify,
        state=State.STALLED,
        began_ns=stall.since_ns,
        why=stall.why,
        doubt=doubt or stall.settle or (RUNNING if stall.origin == "flight" else ""),
    )


def who(stall: Stall) -> str:
    """The culprits in words, or that there is none."""
    return name_ranks(stall.culprits) if stall.culprits else "no single rank"


def waiting(stall: Stall) -> str:
    """``7 ranks wait``, ``rank 3 waits``."""
    count = _waiting(stall)
    if count != 1:
        return f"{count:,} ranks wait"
    return f"{name_ranks(stall.victims)} waits" if len(stall.victims) == 1 else "one rank waits"


def _waiting(stall: Stall) -> int:
    """Those that were seen to; victims of other groups wait elsewhere."""
    return stall.seen_waiting or len(stall.victims)


def doing(stall: Stall) -> str:
    """What the culprit does instead."""
    return f"in its {stall.phase}" if stall.phase else "elsewhere"


def place(stall: Stall) -> str:
    """``all_reduce #4190 of default_pg``."""
    number = f" #{stall.seq}" if stall.seq is not None else ""
    return f"{stall.op or 'a collective'}{number}" + (f" of {stall.group}" if stall.group else "")


def _groups(stall: Stall) -> tuple[str, ...]:
    return (stall.group,) if stall.group and stall.culprits else ()


def _rows(stall: Stall) -> tuple[Evidence, ...]:
    source = _ORIGINS.get(stall.origin, stall.origin)
    rows = [Evidence("waited for in", place(stall), "", None, source)] if stall.op or stall.seq is not None else []
    count = _waiting(stall) or len(stall.candidates)  # where nobody can be told from the others, all wait
    if count:
        rows.append(Evidence("ranks that wait", count, "rank" if count == 1 else "ranks", None, source))
    if stall.mismatch:
        rows.append(Evidence("calls that differ", stall.mismatch, "", None, source))
    if stall.cycle:
        circle = "; ".join(f"rank {rank}: {what}" for rank, what in stall.cycle[:8])
        rows.append(Evidence("circle of waiting", circle, "", None, source))
    if stall.phase:
        rows.append(Evidence("meanwhile it is in", stall.phase, "", None, stall.where or stall.said_source))
    if stall.said:
        rows.append(Evidence("what shows it", stall.said[:160], "", None, stall.said_source))
    if stall.candidates and stall.candidates != stall.culprits:
        rows.append(Evidence("could be", name_ranks(stall.candidates), "", None, source))
    if stall.timeout_ms is not None:
        rows.append(Evidence("timeout of the call", stall.timeout_ms / 1000, "s", None, source))
    return tuple(rows)
