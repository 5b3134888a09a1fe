"""Faults that the NVIDIA driver reports, sorted by board and by what they say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement, Seat
from ddiag.model.signals_incident import Events
from ddiag.model.xids import HARDWARE, NVLINK, SECONDARY, SOFTWARE, xid
from ddiag.rulekit.finding import Culprits

REPEATS = 2
"""Different processes that a program's error must hit on one board, and on no other, before the board is suspected."""


@dataclass(frozen=True)
class Board:
    """One GPU of one host with the faults reported for it, in order."""

    host: str | None
    bus_id: str | None
    events: tuple[Event, ...]

    @property
    def codes(self) -> tuple[int, ...]:
        found = (event.integer("code") for event in self.events)
        return tuple(dict.fromkeys(code for code in found if code is not None))

    def seats(self, placement: Placement | None) -> tuple[Seat, ...]:
        """Who runs on it: by its address, else by the process that the driver names."""
        if placement is None:
            return ()
        found = placement.on_device(self.host, self.bus_id)
        if found:
            return found
        pids = {event.integer("pid") for event in self.events}
        seats = [seat for pid in pids for seat in placement.of_process(self.host, pid)]
        return tuple(seats) if len({seat.rank for seat in seats}) == 1 else ()


def boards(events: Events) -> tuple[Board, ...]:
    """Every board that an Xid names, in the order of the first."""
    found: dict[tuple[str | None, str | None], list[Event]] = defaultdict(list)
    for event in events.of("kernel.xid"):
        found[event.host, event.word("bus_id") or None].append(event)
    return tuple(Board(host, bus, tuple(seen)) for (host, bus), seen in found.items())


def with_nature(found: Iterable[Board], nature: str) -> tuple[Board, ...]:
    """Boards that have faults of *nature*, with these faults only."""
    kept = []
    for board in found:
        chosen = tuple(event for event in board.events if nature_of(event) == nature)
        if chosen:
            kept.append(Board(board.host, board.bus_id, chosen))
    return tuple(kept)


def nature_of(event: Event) -> str:
    """A code's nature; what the driver itself calls a consequence of another Xid is one."""
    if event.integer("caused_by") is not None:
        return SECONDARY
    return xid(event.integer("code") or 0).nature


def hardware_boards(events: Events) -> tuple[Board, ...]:
    """Boards with faults of the hardware that end or hang a job."""
    faulty = with_nature(boards(events), HARDWARE)
    return tuple(board for board in faulty if any(xid(code).stops for code in board.codes))


def before_the_job(found: Sequence[Board], events: Events, hours: float) -> tuple[Board, ...]:
    """Boards whose faults all lie so many *hours* before the first line of the job itself, where times tell."""
    job = [e.ts_ns for e in events.all if e.ts_ns is not None and not e.kind.startswith(("kernel.", "gpu.", "node."))]
    if not job:
        return ()
    began = min(job) - hours * 3.6e12
    return tuple(board for board in found if all(e.ts_ns is not None and e.ts_ns < began for e in board.events))


def repeating_board(events: Events) -> Board | None:
    """The one board on which program errors repeat, process after process, while no other board has any."""
    soft = with_nature(boards(events), SOFTWARE)
    if len(soft) != 1:
        return None
    pids = {event.integer("pid") for event in soft[0].events} - {None}
    return soft[0] if len(pids) > REPEATS else None


def nvlink_boards(events: Events) -> tuple[Board, ...]:
    """Boards with NVLink faults that are not called non-fatal."""
    found = []
    for board in with_nature(boards(events), NVLINK):
        fatal = tuple(event for event in board.events if event.get("fatal") is not False)
        if fatal:
            found.append(Board(board.host, board.bus_id, fatal))
    return tuple(found)


def culprits(found: Sequence[Board], placement: Placement | None) -> Culprits:
    """The boards, their hosts, and the ranks on them: all, or none when one of the boards has no known rank."""
    seats = [board.seats(placement) for board in found]
    ranks = sorted({seat.rank for group in seats for seat in group}) if all(seats) else []
    named = dict.fromkeys(host for board in found if (host := _host(board, placement)) is not None)
    names = [placement.name(b.host, b.bus_id) if placement else str(b.bus_id) for b in found if b.bus_id]
    return Culprits(ranks=tuple(ranks), hosts=tuple(named), devices=tuple(dict.fromkeys(names)))


def _host(board: Board, placement: Placement | None) -> str | None:
    if board.host is not None or placement is None:
        return board.host
    seats = board.seats(placement)
    return seats[0].host if seats and seats[0].host else placement.host(None)


def codes_in_words(codes: Iterable[int]) -> str:
    """``Xid 79: the GPU has fallen off the bus``."""
    return "; ".join(f"Xid {code}: {xid(code).means}" for code in codes)


def actions(codes: Iterable[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(act for code in codes if (act := xid(code).act)))


def assumed_words(found: Iterable[Board], placement: Placement | None) -> str:
    """What the ranks rest on, where no line states it."""
    seats = [seat for board in found for seat in board.seats(placement)]
    if not any(seat.assumed for seat in seats):
        return ""
    return "the rank is taken from the GPU's number (rank N on GPU N of the only node); no line states it"
