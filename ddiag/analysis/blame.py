"""Whom each wait is due to, followed through groups to the rank that was late of its own accord.

In one call the last member to arrive makes the others wait. With several groups that is not the end of it: a rank is
late in its data-parallel group because it had waited in its tensor-parallel group. What the late rank had waited
*elsewhere* since it last met these ranks, beyond what the victim itself had waited, is passed on to those it waited
for, and so on back to the beginning of the step.
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
    last_count: Ints
    """Calls in which this rank alone came last."""
    calls: Ints
    """Calls it took part in."""
    avoidable_ms: Floats
    """Waiting that would vanish if this rank alone came with the second-latest member, rank-ms."""


@dataclass(frozen=True)
class _Rows:
    """One row per member of a call, by rank and in the order of the rank's own clock."""

    rank: Ints
    call: Ints
    step: Ints
    wait: Floats
    exposed: Floats
    first_of_step: Ints
    """Row at which the rank's step begins."""
    previous: Ints
    """The rank's last row before this one in which it met all ranks of this call; -1 if none."""

    def waited_elsewhere(self) -> tuple[Floats, Ints]:
        """Exposed waiting of the rank since it last met these ranks in this step, and the row after that meeting."""
        before = np.concatenate(([0.0], np.cumsum(self.exposed)))
        begin = np.maximum(self.previous + 1, self.first_of_step)
        return before[np.arange(len(self.rank))] - before[begin], begin


def blame(waits: pl.DataFrame, *, weight: str = "wait_ms", tie_ms: float = MIN_TIE_MS) -> Blame:
    """Attribute the waiting in *waits* (``rank, call, comm, step, start_ns, wait_ms, exposed_wait_ms``).

    *weight*: the column that is summed, ``wait_ms`` (all waiting) or ``exposed_wait_ms`` (waiting that compute did not
    hide). Members within *tie_ms* of the last arrival share the blame.
    """
    ranks, steps = np.unique(waits["rank"].to_numpy()), np.unique(waits["step"].to_numpy())
    rows = _rows(waits, ranks, steps)
    amount = _in_order(waits)[weight].to_numpy()
    calls = int(rows.call.max()) + 1
    late, shares, alone = _late_rows(rows, calls, max(tie_ms, MIN_TIE_MS))
    mass = _sum_by(rows.call, amount, calls)
    caused = _followed(rows, mass, late, shares, (ranks.size, steps.size))
    return Blame(
        ranks=ranks,
        steps=steps,
        caused_ms=caused,
        last_count=np.bincount(rows.rank[late[alone]], minlength=ranks.size),
        calls=np.bincount(rows.rank, minlength=ranks.size),
        avoidable_ms=_avoidable(rows, late, calls, ranks.size),
    )


def _in_order(waits: pl.DataFrame) -> pl.DataFrame:
    return waits.sort("rank", "start_ns", "call")


def _rows(waits: pl.DataFrame, ranks: Ints, steps: Ints) -> _Rows:
    ordered = _in_order(waits)
    rank = np.searchsorted(ranks, ordered["rank"].to_numpy())
    step = np.searchsorted(steps, ordered["step"].to_numpy())
    call = np.unique(ordered["call"].to_numpy(), return_inverse=True)[1].astype(np.int64)
    block = rank * steps.size + step
    new = np.concatenate(([True], block[1:] != block[:-1]))
    return _Rows(
        rank=rank,
        call=call,
        step=step,
        wait=ordered["wait_ms"].to_numpy(),
        exposed=ordered["exposed_wait_ms"].fill_null(0.0).to_numpy(),
        first_of_step=np.maximum.accumulate(np.where(new, np.arange(len(rank)), 0)),
        previous=_previous_meetings(rank, ordered["comm"].to_numpy().astype(np.int64)),
    )


def _previous_meetings(rank: Ints, comm: Ints) -> Ints:
    """For each row the latest earlier row of the rank on a communicator that holds all members of this one."""
    order = np.lexsort((comm, rank))
    edges = np.flatnonzero(np.diff(rank[order]) | np.diff(comm[order])) + 1
    rows_of: dict[int, dict[int, Ints]] = {}
    for rows in np.split(order, edges):
        rows_of.setdefault(int(rank[rows[0]]), {})[int(comm[rows[0]])] = rows
    members: dict[int, set[int]] = {}
    for who, mine in rows_of.items():
        for c in mine:
            members.setdefault(c, set()).add(who)
    previous = np.full(len(rank), -1, dtype=np.int64)
    for mine in rows_of.values():
        for c in mine:
            meetings = np.sort(np.concatenate([rows for other, rows in mine.items() if members[other] >= members[c]]))
            before = np.concatenate(([-1], meetings[:-1]))
            previous[mine[c]] = before[np.searchsorted(meetings, mine[c])]
    return previous


def _late_rows(rows: _Rows, calls: int, tie_ms: float) -> tuple[Ints, Floats, npt.NDArray[np.bool_]]:
    """Per call the row of the last arrival; per row its share of the call's blame; per call whether it was alone."""
    order = np.lexsort((rows.wait, rows.call))
    late = order[np.searchsorted(rows.call[order], np.arange(calls))]
    tied = rows.wait - rows.wait[late][rows.call] <= tie_ms
    members = np.bincount(rows.call[tied], minlength=calls)
    return late, np.where(tied, 1.0 / members[rows.call], 0.0), members == 1


def _followed(rows: _Rows, mass: Floats, late: Ints, shares: Floats, shape: tuple[int, int]) -> Floats:
    """(rank, step) sums of *mass* after each call has passed on what its late rank inherited."""
    elsewhere, begin = rows.waited_elsewhere()
    inherited = _inherited_share(rows, elsewhere, late)
    caused, total = np.zeros(shape), mass.sum()
    for hop in range(_MAX_HOPS):
        passed_on = mass * inherited if hop < _MAX_HOPS - 1 else np.zeros_like(mass)
        own = (mass - passed_on)[rows.call] * shares
        np.add.at(caused, (rows.rank, rows.step), own)
        if passed_on.sum() <= _NEGLIGIBLE * total:
            break
        mass = _spread_back(rows, passed_on, late, elsewhere, begin)
    return caused


def _inherited_share(rows: _Rows, elsewhere: Floats, late: Ints) -> Floats:
    """Per call the share of its waiting that the late rank owes to its own earlier waiting in other groups."""
    excess = np.clip(elsewhere[late][rows.call] - elsewhere, 0.0, rows.wait)
    calls = len(late)
    owed, waited = _sum_by(rows.call, excess, calls), _sum_by(rows.call, rows.wait, calls)
    share = np.divide(owed, waited, out=np.zeros(calls), where=waited > 0)
    return np.where(elsewhere[late] > 0, np.minimum(share, 1.0), 0.0)


def _spread_back(rows: _Rows, passed_on: Floats, late: Ints, elsewhere: Floats, begin: Ints) -> Floats:
    """Give what each call passes on to the earlier calls in which its late rank waited, in proportion to that."""
    moving = np.flatnonzero(passed_on > 0)
    density = passed_on[moving] / elsewhere[late[moving]]
    change = np.zeros(len(rows.rank) + 1)
    np.add.at(change, begin[late[moving]], density)
    np.add.at(change, late[moving], -density)
    return _sum_by(rows.call, np.cumsum(change)[:-1] * rows.exposed, len(passed_on))


def _avoidable(rows: _Rows, late: Ints, calls: int, ranks: int) -> Floats:
    others = np.ones(len(rows.rank), dtype=bool)
    others[late] = False
    second = np.full(calls, np.inf)
    np.minimum.at(second, rows.call[others], rows.wait[others])
    members = np.bincount(rows.call, minlength=calls)
    gain = np.where(np.isfinite(second), (second - rows.wait[late]) * (members - 1), 0.0)
    return _sum_by(rows.rank[late], gain, ranks)


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
