"""Why a job does not go on: dumps, rings, logs, stacks and deaths put together into one :class:`Stall`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from ddiag.analysis.hang import phases
from ddiag.analysis.hang.cause import cause_of
from ddiag.analysis.hang.dumps import DUMPED, conclude
from ddiag.analysis.hang.hints import hints_of
from ddiag.analysis.hang.logs import conclude_logs
from ddiag.analysis.hang.phases import Context, Doing, context
from ddiag.analysis.hang.positions import Positions
from ddiag.analysis.hang.setup import at_setup
from ddiag.analysis.hang.stands import group_stands, wait_began_ns
from ddiag.analysis.hang.told import Told, told
from ddiag.analysis.hang.verdict import Verdict
from ddiag.analysis.hang.words import settle_with, why
from ddiag.model.run import Run
from ddiag.model.signals_incident import Deaths, Events, Settings, Stacks, Stall

EXPLAINING = ("exception", "cuda_oom", "cuda_error", "host_oom", "signal", "exit", "gpu_fault", "nccl_error")
"""Deaths after which peers wait in vain."""
_TELLING = (phases.SETUP, phases.CHECKPOINT, phases.EVALUATION, phases.GENERATE, phases.WEIGHT_SYNC, phases.COMPILE)
"""What a line without a writer's rank may say; by custom rank 0 prints such lines."""


_LATE = {"setup": "late", "checkpoint": "late", "barrier": "late"}
"""Ways of being late that need no further word."""


@dataclass(frozen=True)
class Known:
    """The evidence in the shapes that the steps below need."""

    events: Events
    settings: Settings | None
    context: Context
    log: Told
    place: Positions | None


def stall(
    run: Run, events: Events | None, deaths: Deaths | None, stacks: Stacks | None, settings: Settings | None = None
) -> Stall | None:
    """What the evidence says of a stall; None when it holds nothing about one.

    Dumps and rings decide before logs, logs before stacks alone; phases and deaths then refine what they say.
    """
    lines = events if events is not None else Events(())
    world = frozenset(run.coverage.ranks_expected)
    log = told(lines, world, healthy_counts=_same_counts(run))
    around = context(events, stacks)
    found, place, origin = _first_verdict(run, lines, log, around)
    if found is None:
        return None
    known = Known(lines, settings, around, log, place)
    found = _refined(found, known)
    found = _with_deaths(found, deaths)
    return _stall(found, known, origin)


def _first_verdict(run: Run, lines: Events, log: Told, around: Context) -> tuple[Verdict | None, Positions | None, str]:
    flight, status = run.table("flight"), run.table("flight_status")
    dumped = status.filter(pl.col("origin").is_in(DUMPED))
    if not flight.is_empty() or not dumped.is_empty():
        found, place = conclude(flight, dumped)
        if found.verdict != "running" or not log.waits:
            return found, place, "flight" if "flight" in dumped["origin"] or dumped.is_empty() else "ring"
    early = at_setup(lines)
    said = conclude_logs(lines, log)
    if said is not None and said.verdict in ("late", "mismatch", "barrier"):
        return said, None, "desync" if lines.has("c10d.desync") else "watchdog"
    if early is not None:
        return early, None, "watchdog"
    late, lag = _behind(run)
    if late and (log.waits or lag > 1):
        return Verdict("late", late, (), "high" if log.waits else "medium", None, log.waiting - set(late)), None, "ras"
    if said is not None:
        return said, None, "watchdog"
    return by_stacks(around), None, "stack"


def _same_counts(run: Run) -> bool:
    """RAS counted the same calls on every rank."""
    ras = run.table("flight_status").filter(pl.col("origin") == "ras")
    return not ras.is_empty() and not _behind(run)[0]


def _behind(run: Run) -> tuple[tuple[int, ...], int]:
    """Ranks that launched fewer calls than most in RAS's count, and by how many at least; empty when none did."""
    ras = run.table("flight_status").filter(pl.col("origin") == "ras").drop_nulls(["rank", "last_enqueued"])
    found: set[int] = set()
    lags = []
    for _, rows in ras.group_by("group"):
        counts = dict(rows.group_by("rank").agg(pl.col("last_enqueued").max()).iter_rows())
        usual = Counter(counts.values()).most_common(1)[0][0]
        late = {rank: usual - count for rank, count in counts.items() if count < usual}
        if late and 2 * len(late) <= len(counts):
            found |= set(late)
            lags.append(min(late.values()))
    return tuple(sorted(found)), min(lags, default=0)


def by_stacks(around: Context) -> Verdict | None:
    """Most stacks wait in a collective, a few do not: those are late."""
    waiting = frozenset(rank for rank, frames in around.stack_of.items() if phases.in_collective(frames))
    others = tuple(sorted(rank for rank in around.stack_of if rank not in waiting))
    if not waiting or not others or len(others) > len(waiting):
        return None
    sure = len(waiting) >= 2 and len(others) <= max(1, len(around.stack_of) // 4)
    return Verdict("late", others, (), "medium" if sure else "low", None, waiting)


def _refined(found: Verdict, known: Known) -> Verdict:
    """Suspects that are seen doing something else are late; the others of them are victims."""
    suspects = found.candidates or found.culprits
    if found.verdict not in ("suspect_by_absence", "undecided") or not suspects or found.mismatch is not None:
        return found
    seen = {rank: known.context.doing[rank] for rank in suspects if rank in known.context.doing}
    sure = tuple(sorted(rank for rank in seen if seen[rank].sure))
    if sure and len(sure) < max(2, len(known.log.world)):
        whole = set(sure) == set(suspects) or len(suspects) == 1
        return replace(found, verdict="late", culprits=sure, candidates=(), confidence="high" if whole else "medium")
    telling = [one for one in known.context.unsigned if one.phase in _TELLING]
    if telling and 0 in suspects:
        sole = "high" if tuple(suspects) == (0,) else "medium"
        return replace(found, verdict="late", culprits=(0,), candidates=(), confidence=sole)
    return found


def _with_deaths(found: Verdict, deaths: Deaths | None) -> Verdict:
    """Somebody died of something else than the wait: that explains it."""
    if deaths is None or found.verdict == "running":
        return found
    dead = {death.rank for death in deaths.first if death.cause in EXPLAINING and death.rank is not None}
    dead -= found.waiting
    if not dead:
        return found
    suspects = {*found.culprits, *found.candidates}
    if suspects & dead:
        return replace(found, verdict="dead", culprits=tuple(sorted(suspects & dead)), candidates=(), mismatch=None)
    if found.verdict in ("suspect_by_absence", "undecided", "in_flight"):
        return replace(found, verdict="dead", culprits=tuple(sorted(dead)), candidates=())
    return found


def _stall(found: Verdict, known: Known, origin: str) -> Stall:
    hints = hints_of(found, known.place, known.log, known.events, known.settings, known.context)
    around = _with_unsigned(found, known.context)
    cause = cause_of(found, around, hints)
    stands = group_stands(found, known.place, known.log)
    doing = next((around.doing[rank] for rank in found.culprits if rank in around.doing), None)
    victims = _victims(found, known)
    group = found.node[1] if found.node is not None else None
    described = hints.desc or (f"group {group}" if group else None)
    result = Stall(
        verdict=_LATE.get(found.verdict, found.verdict),
        culprits=found.culprits,
        victims=victims,
        confidence=found.confidence,
        group=described,
        seq=hints.seq,
        op=hints.op or None,
        why="",
        seen_waiting=_seen_waiting(found, known.log) if origin == "watchdog" else 0,
        where=_where(found, doing, hints.frames) or _stands_at(found, around),
        phase=doing.phase if doing is not None else "",
        ahead=tuple(sorted(hints.ahead & set(found.culprits))),
        candidates=found.candidates,
        mismatch=found.mismatch.words if found.mismatch is not None else "",
        cycle=tuple((rank, _named(node)) for rank, node in found.cycle),
        groups=stands,
        stacks=_grouped(around, found.culprits),
        since_ns=wait_began_ns(found, known.place),
        origin=origin,
        cause=cause,
        timeout_ms=hints.timeout_ms,
        said=doing.said if doing is not None else "",
        said_source=doing.source if doing is not None else "",
    )
    return replace(result, why=why(result), settle=settle_with(result, known.place))


def _seen_waiting(found: Verdict, log: Told) -> int:
    group = found.node[1] if found.node is not None else None
    return len({wait.rank for wait in log.waits if wait.group == group} - set(found.culprits))


def _with_unsigned(found: Verdict, around: Context) -> Context:
    """Words without a writer count for rank 0 when it is the culprit and says nothing itself."""
    telling = [one for one in around.unsigned if one.phase in _TELLING]
    if 0 not in found.culprits or 0 in around.doing or not telling:
        return around
    return replace(around, doing={**around.doing, 0: telling[-1]})


def _victims(found: Verdict, known: Known) -> tuple[int, ...]:
    everyone = set(known.log.world) | found.waiting
    if known.place is not None:
        everyone |= {rank for ranks in known.place.members.values() for rank in ranks}
    blamed = set(found.culprits) or set(found.candidates)
    return tuple(sorted(everyone - blamed)) if found.verdict != "running" else ()


def _stands_at(found: Verdict, around: Context) -> str | None:
    """Line of user code of the first culprit's stack, whatever it does there."""
    return next((phases.user_line(around.stack_of[rank]) for rank in found.culprits if rank in around.stack_of), None)


def _where(found: Verdict, doing: Doing | None, stands_frames: dict[int, str]) -> str | None:
    if doing is not None and doing.where:
        return doing.where
    return next((stands_frames[rank] for rank in found.culprits if stands_frames.get(rank)), None)


def _named(node: tuple[str, str, int, int]) -> str:
    kind, group, first, second = node
    return f"send {first} -> {second}" if kind == "p2p" else f"call #{first} of group {group}"


def _grouped(around: Context, culprits: Sequence[int]) -> tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]:
    """Identical stacks together, the culprit's first, then the rarest."""
    by_frames: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in sorted(around.stack_of):
        by_frames[around.stack_of[rank]].append(rank)
    sizes = Counter({frames: len(ranks) for frames, ranks in by_frames.items()})
    order = sorted(by_frames, key=lambda frames: (not set(by_frames[frames]) & set(culprits), sizes[frames]))
    return tuple((tuple(by_frames[frames]), frames) for frames in order)
