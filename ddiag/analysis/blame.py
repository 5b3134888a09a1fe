"""Whom each wait is due to, followed through groups to the rank that was late of its own accord.

In one call the last member to arrive makes the others wait. With several groups that is not the end of it: a rank is
late in its data-parallel group because it had waited in its tensor-parallel group. What the late rank had waited
*elsewhere* since it last set off together with these ranks, beyond what the victim itself had waited, is passed on to
those it waited for, and so on back in time. Ranks set off together after a call that their compute waits for; the calls
of a gradient reduction beside backward are none: what a rank is behind in one bucket it is still behind in the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIN_TIE_MS = 0.002
"""Arrivals closer than this are simultaneous: kernel starts are known to a microsecond or so."""
_MAX_HOPS = 64
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class Blame:
    """Waiting by the rank that caused it; arrays follow ``ranks`` and ``steps``."""

    ranks: Ints
    steps: Ints
    caused_ms: Floats
    """(rank, step): waiting of others that goes back to this rank, rank-ms."""
    exposed_ms: Floats
    """(rank, step): the part of it that no compute hid."""
    avoidable_ms: Floats
    """(rank, step): waiting that would vanish if this rank alone came with the second-latest, rank-ms."""
    last_count: Ints
    """Calls in which this rank alone came last."""
    calls: Ints
    """Calls it took part in."""


@dataclass(frozen=True)
class _Rows:
    """One row per member of a call, by rank and in the order of the rank's own clock."""

    rank: Ints
    call: Ints
    step: Ints
    wait: Floats
    exposed: Floats
    since: Ints
    """Row after the one from which the rank last set off with all ranks of this call; its first row if it had not."""
    meetings: Ints
    """Rows in which the rank meets all members of one of its communicators, communicator after communicator."""
    met: tuple[Ints, Ints]
    """For each row the stretch of ``meetings`` in which the rank met all ranks of this call from ``since`` on."""

    def waited_elsewhere(self) -> Floats:
        """Exposed waiting of the rank since ``since`` in calls without all of these ranks."""
        before, met = (np.concatenate(([0.0], np.cumsum(part))) for part in (self.exposed, self.exposed[self.meetings]))
        first, end = self.met
        return np.asarray(np.maximum(before[:-1] - before[self.since] - (met[end] - met[first]), 0.0))

    def spread(self, at: Ints, density: Floats) -> Floats:
        """Per row, *density* x its exposed waiting summed over the rows *at* that had waited in it elsewhere."""
        first, end = self.met
        every = _running(self.since[at], at, density, len(self.rank))
        met = _running(first[at], end[at], density, len(self.meetings))
        return np.asarray(np.maximum(every - _sum_by(self.meetings, met, len(self.rank)), 0.0) * self.exposed)


def blame(waits: pl.DataFrame, *, tie_ms: float = MIN_TIE_MS) -> Blame:
    """Attribute the waiting in *waits* (``rank, call, comm, step, start_ns, wait_ms, exposed_wait_ms, resumes``).

    Members within *tie_ms* of the last arrival share the blame.
    """
    ranks, steps = np.unique(waits["rank"].to_numpy()), np.unique(waits["step"].to_numpy())
    rows = _rows(waits, ranks, steps)
    calls = int(rows.call.max()) + 1
    late, shares, alone = _late_rows(rows, calls, max(tie_ms, MIN_TIE_MS))
    paths = _Paths.of(rows, late, shares, (ranks.size, steps.size))
    return Blame(
        ranks=ranks,
        steps=steps,
        caused_ms=paths.followed(_sum_by(rows.call, rows.wait, calls)),
        exposed_ms=paths.followed(_sum_by(rows.call, rows.exposed, calls)),
        avoidable_ms=paths.followed(_avoidable(rows, late, calls)),
        last_count=np.bincount(rows.rank[late[alone]], minlength=ranks.size),
        calls=np.bincount(rows.rank, minlength=ranks.size),
    )


def _rows(waits: pl.DataFrame, ranks: Ints, steps: Ints) -> _Rows:
    ordered = waits.sort("rank", "start_ns", "call")
    rank = np.searchsorted(ranks, ordered["rank"].to_numpy())
    step = np.searchsorted(steps, ordered["step"].to_numpy())
    call = np.unique(ordered["call"].to_numpy(), return_inverse=True)[1].astype(np.int64)
    resumes = ordered["resumes"].to_numpy()
    together = 2 * np.bincount(call, weights=resumes) >= np.bincount(call)
    since, meetings, met = _meetings(rank, ordered["comm"].to_numpy().astype(np.int64), together[call])
    return _Rows(
        rank=rank,
        call=call,
        step=step,
        wait=ordered["wait_ms"].to_numpy(),
        exposed=ordered["exposed_wait_ms"].fill_null(0.0).to_numpy(),
        since=since,
        meetings=meetings,
        met=met,
    )


def _meetings(rank: Ints, comm: Ints, together: npt.NDArray[np.bool_]) -> tuple[Ints, Ints, tuple[Ints, Ints]]:
    """``since``, ``meetings`` and ``met`` of :class:`_Rows`; *together*: rows from which all set off at once."""
    rows_of = _rows_of(rank, comm)
    members: dict[int, set[int]] = {}
    for who, mine in rows_of.items():
        for c in mine:
            members.setdefault(c, set()).add(who)
    since, first, end = (np.zeros(len(rank), dtype=np.int64) for _ in range(3))
    meetings: list[Ints] = []
    length = 0
    for mine in rows_of.values():
        begin = min(int(rows[0]) for rows in mine.values())
        for c, rows in mine.items():
            met = np.sort(np.concatenate([other for d, other in mine.items() if members[d] >= members[c]]))
            after = np.concatenate(([begin], met[together[met]] + 1))
            since[rows] = after[np.searchsorted(after, rows, side="right") - 1]
            first[rows] = length + np.searchsorted(met, since[rows])
            end[rows] = length + np.searchsorted(met, rows)
            meetings.append(met)
            length += len(met)
    return since, np.concatenate(meetings), (first, end)


def _rows_of(rank: Ints, comm: Ints) -> dict[int, dict[int, Ints]]:
    """The rows of each rank on each of its communicators, ascending."""
    order = np.lexsort((comm, rank))
    edges = np.flatnonzero(np.diff(rank[order]) | np.diff(comm[order])) + 1
    found: dict[int, dict[int, Ints]] = {}
    for rows in np.split(order, edges):
        found.setdefault(int(rank[rows[0]]), {})[int(comm[rows[0]])] = rows
    return found


def _late_rows(rows: _Rows, calls: int, tie_ms: float) -> tuple[Ints, Floats, npt.NDArray[np.bool_]]:
    """Per call the row of the last arrival; per row its share of the call's blame; per call whether it was alone."""
    least = np.full(calls, np.inf)
    np.minimum.at(least, rows.call, rows.wait)
    arrived = rows.wait - least[rows.call]
    last = np.flatnonzero(arrived == 0)[::-1]
    late = np.empty(calls, dtype=np.int64)
    late[rows.call[last]] = last
    tied = arrived <= tie_ms
    members = np.bincount(rows.call[tied], minlength=calls)
    return late, np.where(tied, 1.0 / members[rows.call], 0.0), members == 1


@dataclass(frozen=True)
class _Paths:
    """How blame travels back from call to call."""

    rows: _Rows
    late: Ints
    shares: Floats
    shape: tuple[int, int]
    elsewhere: Floats
    """Per row: what its rank had waited elsewhere since it last set off with these ranks."""
    inherited: Floats
    """Per call: share of its waiting that its late rank owes to that."""

    @classmethod
    def of(cls, rows: _Rows, late: Ints, shares: Floats, shape: tuple[int, int]) -> _Paths:
        elsewhere = rows.waited_elsewhere()
        return cls(rows, late, shares, shape, elsewhere, _inherited_share(rows, elsewhere, late))

    def followed(self, mass: Floats) -> Floats:
        """(rank, step) sums of *mass* (per call) after each call has passed on what its late rank inherited."""
        caused, total = np.zeros(self.shape), mass.sum()
        for hop in range(_MAX_HOPS):
            passed_on = mass * self.inherited if hop < _MAX_HOPS - 1 else np.zeros_like(mass)
            own = (mass - passed_on)[self.rows.call] * self.shares
            np.add.at(caused, (self.rows.rank, self.rows.step), own)
            if passed_on.sum() <= _NEGLIGIBLE * total:
                break
            mass = self._spread_back(passed_on)
        return caused

    def _spread_back(self, passed_on: Floats) -> Floats:
        """Give what each call passes on to the earlier calls in which its late rank waited, in proportion to that."""
        moving = np.flatnonzero(passed_on > 0)
        row = self.late[moving]
        given = self.rows.spread(row, passed_on[moving] / self.elsewhere[row])
        return _sum_by(self.rows.call, given, len(passed_on))


def _inherited_share(rows: _Rows, elsewhere: Floats, late: Ints) -> Floats:
    """Per call the share of its waiting that the late rank owes to its own earlier waiting in other groups."""
    excess = np.clip(elsewhere[late][rows.call] - elsewhere, 0.0, rows.wait)
    calls = len(late)
    owed, waited = _sum_by(rows.call, excess, calls), _sum_by(rows.call, rows.wait, calls)
    share = np.divide(owed, waited, out=np.zeros(calls), where=waited > 0)
    return np.where(elsewhere[late] > 0, np.minimum(share, 1.0), 0.0)


def _avoidable(rows: _Rows, late: Ints, calls: int) -> Floats:
    """Per call what the others would not have waited, had its late rank come with the second-latest."""
    others = np.ones(len(rows.rank), dtype=bool)
    others[late] = False
    second = np.full(calls, np.inf)
    np.minimum.at(second, rows.call[others], rows.wait[others])
    second = np.where(np.isfinite(second), second, rows.wait[late])
    return (second - rows.wait[late]) * (np.bincount(rows.call, minlength=calls) - 1)


def _running(first: Ints, end: Ints, amount: Floats, size: int) -> Floats:
    """Per place the sum of the amounts whose stretch ``[first, end)`` covers it."""
    change = np.zeros(size + 1)
    np.add.at(change, first, amount)
    np.add.at(change, end, -amount)
    return np.asarray(np.cumsum(change)[:-1])


def _sum_by(group: Ints, values: Floats, size: int) -> Floats:
    return np.bincount(group, weights=values, minlength=size).astype(np.float64)


def members_by_rank(waits: pl.DataFrame) -> dict[int, set[int]]:
    """The ranks that each rank meets in any of its communicators, itself excluded."""
    groups: Iterable[list[int]] = waits.group_by("comm").agg(pl.col("rank").unique())["rank"].to_list()
    met: dict[int, set[int]] = {}
    for members in groups:
        for rank in members:
            met.setdefault(rank, set()).update(members)
    return {rank: others - {rank} for rank, others in met.items()}
