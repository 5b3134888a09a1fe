"""What the on-call view of a hang shows, as data: who is waited for, by whom, in which calls, with which stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals import JobFacts, Signals
from ddiag.model.signals_incident import Events, GroupStand, Stacks, Stall
from ddiag.plots.table import Column, DataTable, Value, make_table
from ddiag.reporters.hang_words import group_words, headline, is_library, short_frame, tells_nothing
from ddiag.reporters.words import clean
from ddiag.rulekit.cost import name_ranks

MOST_GROUPS, MOST_CALLS, MOST_FRAMES, MOST_STACKS, MOST_LANES = 5, 6, 7, 4, 12
_MAIN = "MainThread"


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose main threads stand at the same place."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    """Shortened, innermost first."""
    culprit: bool
    own: tuple[bool, ...] = ()
    """By frame: it is the user's."""
    left_out: int = 0


@dataclass(frozen=True)
class Waiting:
    """One process group in which ranks wait."""

    group: str
    """In words."""
    call: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    size: int
    since_ns: int | None


@dataclass(frozen=True)
class Call:
    """One of the last calls of a group."""

    seq: int
    op: str
    numel: int | None
    done: int
    waiting: int
    missing: tuple[int, ...]
    """Members that have not issued it."""
    odd: tuple[int, ...]
    """Those that called something else in its place."""
    start_ns: int | None


@dataclass(frozen=True)
class Lane:
    """Ranks that stand alike at each of the last calls."""

    ranks: tuple[int, ...]
    culprit: bool
    cells: tuple[tuple[str, str], ...]
    """By call: (done, waits, missing or odd; what it says)."""


@dataclass(frozen=True)
class Calls:
    group: str
    calls: tuple[Call, ...]
    lanes: tuple[Lane, ...] = ()
    """The culprits' first; at most :data:`MOST_LANES`."""
    more_lanes: int = 0


@dataclass(frozen=True)
class HangView:
    """Everything the view needs besides findings."""

    stall: Stall
    headline: str
    places: Mapping[int, str]
    stacks: tuple[StackGroup, ...]
    more_stacks: int
    waiting: tuple[Waiting, ...]
    more_waiting: int
    calls: tuple[Calls, ...]
    states: tuple[str, ...]
    """What the supervisor saw of the culprits' processes, and of whom it could take no stacks."""


def hang_view(signals: Signals, run: Run) -> HangView | None:
    """The view; None when nothing says that the job stalls."""
    stall = signals.get(Stall)
    if stall is None or stall.verdict == "running":
        return None
    events = signals.get(Events)
    places = _places(events, signals.get(JobFacts))
    stacks = _stacks(stall, signals.get(Stacks))
    waiting = [_waiting(stand) for stand in stall.groups]
    return HangView(
        stall=stall,
        headline=headline(stall, places),
        places=places,
        stacks=tuple(stacks[:MOST_STACKS]),
        more_stacks=max(0, len(stacks) - MOST_STACKS),
        waiting=tuple(waiting[:MOST_GROUPS]),
        more_waiting=max(0, len(waiting) - MOST_GROUPS),
        calls=tuple(
            _calls(run, stand, set(stall.culprits)) for stand in _first_of_each(stall.groups) if stand.call == "coll"
        ),
        states=(*_states(stall, events), *_without_stacks(events)),
    )


def _places(events: Events | None, facts: JobFacts | None) -> dict[int, str]:
    """rank -> ``node-b, local 1``, as far as known."""
    found: dict[int, str] = dict(facts.host_of) if facts is not None else {}
    for event in events.of("process.state", "process.gone") if events is not None else ():
        local = event.integer("local_rank")
        if event.rank is not None and event.host and local is not None:
            found[event.rank] = f"{event.host}, local {local}"
    return {rank: clean(place) for rank, place in found.items()}


def _states(stall: Stall, events: Events | None) -> list[str]:
    if events is None:
        return []
    told = events.of("process.stopped", "process.gone", "process.uninterruptible", "process.state")
    first: dict[int, str] = {}
    for event in sorted(told, key=lambda event: event.kind == "process.state"):
        if event.rank in stall.culprits and event.rank is not None:
            first.setdefault(event.rank, clean(event.text))
    return [first[rank] for rank in stall.culprits[:MOST_STACKS] if rank in first]


def _without_stacks(events: Events | None) -> list[str]:
    """Why stacks are missing, and of whom."""
    why: dict[str, list[int]] = defaultdict(list)
    for event in events.of("process.state") if events is not None else ():
        if event.word("no_stacks") and event.rank is not None:
            why[clean(event.word("no_stacks"))].append(event.rank)
    return [f"no stacks of {name_ranks(ranks)}: {words}" for words, ranks in why.items()]


# -- stacks --------------------------------------------------------------------------------------------------------


def _stacks(stall: Stall, stacks: Stacks | None) -> list[StackGroup]:
    """As the reasoning grouped them; it keeps one stack for each rank."""
    native = {one.rank: one.frames for one in stacks.all if one.kind == "native"} if stacks is not None else {}
    guilty = set(stall.culprits)
    return [_stack(ranks, frames, native, guilty) for ranks, frames in stall.stacks]


def _stack(
    ranks: tuple[int, ...],
    frames: tuple[str, ...],
    native: Mapping[int | None, tuple[str, ...]],
    guilty: Set[int],
) -> StackGroup:
    inner = next((_into_library(native[rank]) for rank in ranks if rank in native), ())
    frames = tuple(frame for frame in frames if not tells_nothing(frame))
    shown = [*inner, *frames][:MOST_FRAMES]
    own = next((place for place, frame in enumerate(frames) if not is_library(frame)), None)
    if own is not None and len(inner) + own >= MOST_FRAMES:
        shown = [*shown[: MOST_FRAMES - 1], frames[own]]
    return StackGroup(
        ranks=ranks,
        frames=tuple(short_frame(frame) for frame in shown),
        culprit=bool(guilty & set(ranks)),
        own=tuple(not is_library(frame) for frame in shown),
        left_out=len(frames) + len(inner) - len(shown),
    )


def _into_library(frames: Sequence[str]) -> tuple[str, ...]:
    """Of a stack with native frames, the two innermost that say something, before the first of Python's."""
    named = []
    for frame in frames:
        if ".py:" in frame:
            break
        if not tells_nothing(frame):
            named.append(frame)
    return tuple(named[:2])


# -- groups --------------------------------------------------------------------------------------------------------


def _waiting(stand: GroupStand) -> Waiting:
    states = stand.state_of
    return Waiting(
        group=group_words(stand.group, stand.desc),
        call=clean(f"{stand.op}{'' if stand.head is None or stand.head < 0 else f' #{stand.head}'}"),
        waiting=tuple(sorted(rank for rank, state in states.items() if state in ("started", "scheduled"))),
        missing=tuple(sorted(rank for rank, state in states.items() if state in ("absent", "no-dump"))),
        size=len(stand.ranks),
        since_ns=stand.since_ns,
    )


def _first_of_each(stands: Sequence[GroupStand]) -> list[GroupStand]:
    by_group: dict[str, GroupStand] = {}
    for stand in stands:
        by_group.setdefault(stand.group, stand)
    return list(by_group.values())[:2]


def _calls(run: Run, stand: GroupStand, guilty: Set[int]) -> Calls:
    """The last calls up to the one that is waited in, and what came after it."""
    flight = run.table("flight").filter((pl.col("group") == stand.group) & (pl.col("call") == "coll"))
    newest = flight.select(pl.col("seq").drop_nulls().unique().sort(descending=True).head(MOST_CALLS)).to_series()
    rows: dict[int, list[dict[str, object]]] = defaultdict(list)
    for row in flight.filter(pl.col("seq").is_in(newest.implode())).iter_rows(named=True):
        rows[row["seq"]].append(row)
    reach = dict(
        run.table("flight_status")
        .filter((pl.col("group") == stand.group) & pl.col("last_enqueued").is_not_null())
        .group_by("rank")
        .agg(pl.col("last_enqueued").max())
        .iter_rows()
    )
    calls = tuple(_call(seq, rows[seq], stand.ranks, reach) for seq in sorted(rows))
    lanes = _lanes(calls, rows, stand.ranks, guilty)
    return Calls(
        group_words(stand.group, stand.desc), calls, tuple(lanes[:MOST_LANES]), max(0, len(lanes) - MOST_LANES)
    )


def _lanes(
    calls: Sequence[Call], rows: Mapping[int, list[dict[str, object]]], members: Sequence[int], guilty: Set[int]
) -> list[Lane]:
    of: dict[int, dict[int, dict[str, object]]] = defaultdict(dict)
    for seq, told in rows.items():
        for row in told:
            of[int(str(row["rank"]))][seq] = row
    alike: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for rank in members:
        alike[tuple(_cell(call, of[rank].get(call.seq), rank) for call in calls)].append(rank)
    lanes = [Lane(tuple(ranks), bool(guilty & set(ranks)), cells) for cells, ranks in alike.items()]
    return sorted(lanes, key=lambda lane: (not lane.culprit, len(lane.ranks), lane.ranks))


def _cell(call: Call, row: dict[str, object] | None, rank: int) -> tuple[str, str]:
    if row is None:
        return ("missing", "not issued") if rank in call.missing else ("unknown", "")
    over = row["state"] == "completed"
    if rank in call.odd:
        size = "" if row["numel_in"] is None else f" of {row['numel_in']}"
        return "odd", clean(f"{row['op']}{size}")
    return ("done", "done") if over else ("waits", "waits")


def _call(seq: int, rows: list[dict[str, object]], members: Sequence[int], reach: Mapping[int, int]) -> Call:
    kinds: dict[tuple[object, object], list[int]] = defaultdict(list)
    for row in rows:
        kinds[row["op"], row["numel_in"]].append(int(str(row["rank"])))
    (op, numel), _ = max(kinds.items(), key=lambda item: len(item[1]))
    starts = [int(str(row["created_ns"])) for row in rows if row["created_ns"] is not None]
    return Call(
        seq=seq,
        op=str(op),
        numel=numel if isinstance(numel, int) else None,
        done=sum(row["state"] == "completed" for row in rows),
        waiting=sum(row["state"] != "completed" for row in rows),
        missing=tuple(rank for rank in members if rank in reach and reach[rank] < seq),
        odd=tuple(sorted(rank for kind, ranks in kinds.items() if kind != (op, numel) for rank in ranks)),
        start_ns=min(starts, default=None),
    )


def who_waits(view: HangView) -> DataTable:
    """The groups in which ranks wait, as a table of the report."""
    columns = (
        Column("group", "Group", kind="text"),
        Column("call", "Call", kind="text"),
        Column("waiting", "Wait in it", "ranks", "count"),
        Column("size", "Members", "ranks", "count"),
        Column("missing", "Missing", kind="text"),
    )
    rows: list[dict[str, Value]] = [
        {
            "group": one.group,
            "call": one.call,
            "waiting": len(one.waiting),
            "size": one.size,
            "missing": name_ranks(one.missing) if one.missing else "nobody",
        }
        for one in view.waiting
    ]
    table = make_table("who-waits", "Who waits, and for whom", columns, rows, cut_by="the culprit's first")
    return replace(table, total=len(view.waiting) + view.more_waiting)


def ranks_words(ranks: Sequence[int]) -> str:
    """``ranks 0–2 (3)``: with the count where it is not seen at a glance."""
    named = name_ranks(ranks)
    return named if len(ranks) < 3 or "in all" in named else f"{named} ({len(ranks):,})"
