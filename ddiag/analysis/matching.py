"""Find the counterparts of each call on the other ranks of its communicator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.analysis.lining_up import UNMATCHED, Sequence, line_up
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run

Int64s = npt.NDArray[np.int64]


def with_steps(calls: pl.DataFrame, windows: StepWindows) -> pl.DataFrame:
    """Add ``step`` (null outside all windows) and ``steady`` to rows with ``rank, start_ns``."""
    steps = windows.table.select(
        pl.col("rank").cast(calls.schema["rank"]), "start_ns", step_end="end_ns", step="step", steady="steady"
    ).sort("start_ns")
    joined = calls.sort("start_ns").join_asof(
        steps, on="start_ns", by="rank", strategy="backward", check_sortedness=False
    )
    inside = (pl.col("start_ns") < pl.col("step_end")).fill_null(value=False)
    return joined.with_columns(step=pl.when(inside).then("step"), steady=inside & pl.col("steady")).drop("step_end")


def numbers_are_recorded(run: Run, windows: StepWindows) -> bool:
    """Step numbers are those of the training loop, not an order of appearance."""
    recorded = run.table("steps").select("rank", "step").unique()
    used = windows.table.select(pl.col("rank").cast(pl.Int32), pl.col("step").cast(pl.Int64))
    return (
        windows.source in ("annotation", "recorded") and used.join(recorded, on=["rank", "step"], how="anti").is_empty()
    )


def with_calls(calls: pl.DataFrame, *, numbered: bool) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Add ``call``: the same id on all ranks for one collective, null for a call without counterpart.

    *numbered*: equal step numbers mean the same iteration on all ranks.
    """
    ordered = _in_issue_order(calls.filter(pl.col("comm").is_not_null()))
    slots = np.full(ordered.height, UNMATCHED, dtype=np.int64)
    notes: list[str] = []
    for rows in _runs(ordered["comm"].to_numpy()):
        members = ordered[int(rows[0]) : int(rows[-1]) + 1]
        pieces = {int(members["rank"][int(piece[0])]): piece for piece in _runs(members["rank"].to_numpy())}
        if len(pieces) < 2:
            continue
        found = line_up({rank: _sequence(members, piece, numbered=numbered) for rank, piece in pieces.items()})
        for rank, slot in found.items():
            slots[rows[0] + pieces[rank]] = slot
        notes += _left_out(members["group"][0], sorted(pieces.keys() - found.keys()))
    keyed = ordered.select("row", "comm", slot=pl.Series(slots)).filter(pl.col("slot") != UNMATCHED)
    ids = keyed.select("row", call=pl.struct("comm", "slot").rank("dense").cast(pl.Int64))
    return calls.join(ids, on="row", how="left", maintain_order="left"), tuple(notes)


def _in_issue_order(calls: pl.DataFrame) -> pl.DataFrame:
    """By communicator and rank as the host issued them where that is known for all of them, else as they began."""
    issued = pl.col("enqueue_ns").is_not_null().all().over("comm", "rank")
    at = pl.when(issued).then("enqueue_ns").otherwise("start_ns")
    return calls.with_columns(_at=at).sort("comm", "rank", "_at", "start_ns").drop("_at")


def _runs(keys: npt.NDArray[np.int32]) -> list[Int64s]:
    """Row numbers of each stretch of equal neighbours."""
    if not len(keys):
        return []
    return np.split(np.arange(len(keys), dtype=np.int64), np.flatnonzero(np.diff(keys)) + 1)


def _sequence(members: pl.DataFrame, piece: Int64s, *, numbered: bool) -> Sequence:
    mine = members[int(piece[0]) : int(piece[-1]) + 1]
    steps = mine["step"].fill_null(-1).to_numpy().astype(np.int64)
    return Sequence(
        codes=mine["code"].to_numpy().astype(np.int64),
        ends_ns=mine["end_ns"].to_numpy().astype(np.int64),
        steps=steps if numbered else np.full(len(steps), -1, dtype=np.int64),
    )


def _left_out(group: str, ranks: list[int]) -> list[str]:
    if not ranks:
        return []
    shown = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return [f"group {group}: the calls of rank(s) {shown} could not be lined up with the others"]
