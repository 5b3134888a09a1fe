"""The worst step as lanes of spans, thinned to what a screen can show and saying so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals import Collectives, InputWait, JobFacts, Signals, StepBudget
from ddiag.plots.palette import COMPUTE, COPY, INPUT, SYNC, TRANSFER, Activity
from ddiag.plots.step_time import rank_label, steady_rows
from ddiag.plots.table import Column, DataTable, make_table

MOST_RANKS = 12
MOST_SPANS = 16_000
FIRST_RESOLUTION = 1 / 6000
"""Of the window: spans and gaps shorter than this are drawn as one."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lane:
    """Spans of one kind on one rank, sorted, in ns since the window's start."""

    activity: Activity
    start: Ints
    end: Ints
    waited: Ints
    """Of a communication span: the first part that was spent waiting for a rank; else 0."""
    name: Ints
    """Index into the timeline's names: the longest span drawn here."""
    count: Ints
    """How many recorded spans this one stands for."""


@dataclass(frozen=True)
class TimelineRank:
    rank: int
    label: str
    lanes: tuple[Lane, ...]
    culprit: bool


@dataclass(frozen=True)
class Timeline:
    step: int
    length_ns: int
    ranks: tuple[TimelineRank, ...]
    ranks_total: int
    names: tuple[str, ...]
    spans: int
    """Recorded spans in the window, of the ranks shown."""
    drawn: int
    resolution_ns: int
    has_wait: bool
    table: DataTable

    @property
    def communicates(self) -> bool:
        return TRANSFER in self.activities

    @property
    def computes(self) -> bool:
        """False for a recording without profiler traces: what looks idle may be computing."""
        return COMPUTE in self.activities

    @property
    def activities(self) -> tuple[Activity, ...]:
        return tuple({lane.activity.key: lane.activity for rank in self.ranks for lane in rank.lanes}.values())


def timeline(
    signals: Signals, run: Run, culprits: Sequence[int] = (), *, outlined: Sequence[int] = ()
) -> Timeline | None:
    """The longest steady step of the *culprits* and the slowest ranks; None when the run has no spans (or no step)."""
    budget, facts = signals.get(StepBudget), signals.get(JobFacts)
    if budget is None or budget.table.is_empty():
        return None
    step, start, end, ranks = _worst_step(budget, culprits)
    spans = {kind.key: _in_window(frame, ranks, start, end) for kind, frame in _sources(signals, run, ranks)}
    total = sum(frame.height for frame in spans.values())
    if total == 0:
        return None
    names = pl.concat([frame["name"] for frame in spans.values()]).unique().sort()
    lanes, resolution = _thinned(spans, names, int((end - start) * FIRST_RESOLUTION) + 1)
    present = [r for r in ranks if any(r == rank for rank, _ in lanes)]
    shown = tuple(
        TimelineRank(
            r,
            rank_label(r, facts),
            tuple(lanes[r, kind.key] for kind in KINDS if (r, kind.key) in lanes),
            r in outlined,
        )
        for r in present
    )
    return Timeline(
        step=step,
        length_ns=end - start,
        ranks=shown,
        ranks_total=budget.table["rank"].n_unique(),
        names=tuple(names.to_list()),
        spans=total,
        drawn=sum(len(lane.start) for lane in lanes.values()),
        resolution_ns=resolution,
        has_wait=any(bool(lane.waited.any()) for lane in lanes.values()),
        table=_table(spans, end - start),
    )


KINDS = (COMPUTE, TRANSFER, COPY, INPUT, SYNC)
LANE_WORDS = {"compute": "compute", "transfer": "comm", "copy": "copy", "input": "input", "sync": "sync"}


def payload(line: Timeline) -> dict[str, object]:
    """What the page's script draws; times are µs since the start of the window, as differences to stay small."""
    return {
        "length": line.length_ns / 1e3,
        "names": [name[:160] for name in line.names],
        "ranks": [
            {
                "rank": rank.rank,
                "label": rank.label,
                "culprit": rank.culprit,
                "lanes": [
                    {
                        "kind": lane.activity.key,
                        "word": LANE_WORDS[lane.activity.key],
                        "s": _micro(lane.start),
                        "e": _micro(lane.end),
                        "w": _micro(lane.waited) if lane.waited.any() else None,
                        "n": lane.name.tolist(),
                        "c": lane.count.tolist() if (lane.count > 1).any() else None,
                    }
                    for lane in rank.lanes
                ],
            }
            for rank in line.ranks
        ],
    }


def _micro(times: Ints) -> list[float]:
    return [round(float(t), 2) for t in times / 1e3]


def _worst_step(budget: StepBudget, culprits: Sequence[int]) -> tuple[int, int, int, list[int]]:
    """(step, start, end, ranks to draw) of the steady step that is longest on average over ranks."""
    rows = steady_rows(budget)
    means = rows.group_by("step").agg(pl.col("step_ms").mean()).sort("step_ms", "step", descending=[True, False])
    step = int(means["step"].to_list()[0])
    mine = rows.filter(pl.col("step") == step).sort("own_ms", "rank", descending=[True, False])
    slow = mine["rank"].to_list()
    chosen = [r for r in culprits if r in set(slow)][:MOST_RANKS]
    others = [r for r in slow if r not in set(chosen)]
    room = MOST_RANKS - len(chosen)
    # The slowest ranks, and the fastest one to compare with.
    chosen += others[: max(room - 1, 0)] + (others[-1:] if len(others) >= room > 0 else [])
    start, end = mine["start_ns"].to_list(), mine["end_ns"].to_list()
    return step, min(start), max(end), sorted(set(chosen))


def _sources(signals: Signals, run: Run, ranks: list[int]) -> list[tuple[Activity, pl.DataFrame]]:
    """(kind, rank / start_ns / end_ns / name / wait_ns) of everything that can be drawn."""
    mine, zero = pl.col("rank").is_in(ranks), pl.lit(0, dtype=pl.Int64)
    columns = [pl.col("rank"), pl.col("start_ns"), pl.col("end_ns"), pl.col("name").cast(pl.String)]
    kernels = run.table("kernels").filter(mine)
    on_device = kernels.height > 0
    compute = kernels.filter(pl.col("kind").cast(pl.String) == "compute") if on_device else _top_operators(run, mine)
    copies = run.table("copies").filter(mine).with_columns(_copy_name().alias("name"))
    calls = run.table("launches").filter(mine & (pl.col("kind").cast(pl.String) == "sync"))
    waits, loads = signals.get(InputWait), pl.DataFrame()
    if waits is not None and waits.waits is not None:
        loads = waits.waits.filter(mine).with_columns(pl.lit(waits.iterator or "next batch").alias("name"))
    found = [(COMPUTE, compute), (COPY, copies), (INPUT, loads), (SYNC, calls)]
    plain = [(kind, frame.select(*columns, zero.alias("wait_ns"))) for kind, frame in found if frame.height]
    communication = _communication(signals, run, ranks)
    return [*plain, (TRANSFER, communication)] if communication.height else plain


def _communication(signals: Signals, run: Run, ranks: list[int]) -> pl.DataFrame:
    matched = signals.get(Collectives)
    if matched is not None and matched.table.height:
        size = pl.col("bytes").cast(pl.Float64) / 2**20
        name = pl.format("{} · group {} · {} MiB", pl.col("op"), pl.col("group"), size.round(3))
        wait = (pl.col("wait_ms").cast(pl.Float64).fill_null(0.0) * 1e6).round().cast(pl.Int64)
        frame = matched.table.filter(pl.col("rank").is_in(ranks))
        bare = pl.format("{} · group {}", pl.col("op"), pl.col("group"))
        return frame.select("rank", "start_ns", "end_ns", pl.coalesce(name, bare).alias("name"), wait.alias("wait_ns"))
    frame = run.table("collectives").filter(pl.col("rank").is_in(ranks))
    wait = pl.lit(0, dtype=pl.Int64).alias("wait_ns")
    return frame.select("rank", "start_ns", "end_ns", pl.col("op").cast(pl.String).alias("name"), wait)


def _top_operators(run: Run, mine: pl.Expr) -> pl.DataFrame:
    """Outermost operators of each thread: what a host-only trace has for compute."""
    ops = run.table("ops").filter(mine & (pl.col("kind").cast(pl.String) == "op")).sort("rank", "tid", "start_ns")
    before = pl.col("end_ns").cum_max().shift(1).over("rank", "tid")
    return ops.filter(before.is_null() | (pl.col("start_ns") >= before))


def _copy_name() -> pl.Expr:
    size = (pl.col("bytes").cast(pl.Float64) / 2**20).round(3)
    return pl.coalesce(pl.format("{} {} MiB", pl.col("direction").cast(pl.String), size), pl.lit("copy"))


def _in_window(frame: pl.DataFrame, ranks: list[int], start: int, end: int) -> pl.DataFrame:
    inside = (pl.col("end_ns") > start) & (pl.col("start_ns") < end) & pl.col("rank").is_in(ranks)
    clipped = frame.filter(inside).with_columns(
        (pl.col("start_ns").clip(start, end) - start).alias("start_ns"),
        (pl.col("end_ns").clip(start, end) - start).alias("end_ns"),
    )
    return clipped.sort("rank", "start_ns")


def _thinned(
    spans: dict[str, pl.DataFrame], names: pl.Series, resolution: int
) -> tuple[dict[tuple[int, str], Lane], int]:
    """Lanes with at most MOST_SPANS spans in all: the resolution is doubled until they fit."""
    place = {name: i for i, name in enumerate(names.to_list())}
    while True:
        lanes = {}
        for kind in KINDS:
            for (rank,), frame in spans.get(kind.key, pl.DataFrame()).group_by("rank") if kind.key in spans else ():
                lanes[int(rank), kind.key] = _lane(kind, frame.sort("start_ns"), place, resolution)
        if sum(len(lane.start) for lane in lanes.values()) <= MOST_SPANS:
            return lanes, resolution
        resolution *= 2


def _lane(kind: Activity, frame: pl.DataFrame, place: dict[str, int], resolution: int) -> Lane:
    """Merge neighbours that a screen cannot tell apart: overlapping, or short ones with a short gap between them."""
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    reach = np.maximum.accumulate(end)
    gap = start[1:] - reach[:-1]
    brief = (end - start) < resolution
    apart = np.where(brief[1:] & brief[:-1], gap >= resolution, gap >= 0)
    first = np.concatenate(([True], apart))
    ids = np.cumsum(first) - 1
    merged = frame.with_columns(pl.Series("id", ids), (pl.col("end_ns") - pl.col("start_ns")).alias("length"))
    longest = pl.col("length").arg_max()
    out = merged.group_by("id", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("name").get(longest),
        pl.col("wait_ns").get(longest), pl.len().alias("count"),
    )  # fmt: skip
    return Lane(
        kind,
        out["start_ns"].to_numpy(),
        out["end_ns"].to_numpy(),
        np.minimum(out["wait_ns"].to_numpy(), (out["end_ns"] - out["start_ns"]).to_numpy()),
        np.array([place[name] for name in out["name"].to_list()], dtype=np.int64),
        out["count"].to_numpy().astype(np.int64),
    )


def _table(spans: dict[str, pl.DataFrame], window_ns: int) -> DataTable:
    """Per rank and lane: spans, busy time and the longest span."""
    records = []
    for kind in KINDS:
        for (rank,), frame in spans[kind.key].group_by("rank") if kind.key in spans else ():
            length = frame["end_ns"] - frame["start_ns"]
            longest = int(length.arg_max() or 0)
            records.append(
                {
                    "rank": int(rank),
                    "lane": "Communication" if kind is TRANSFER else kind.label,
                    "count": frame.height,
                    "ms": int(length.sum()) / 1e6,
                    "wait": int(frame["wait_ns"].sum()) / 1e6 or None,
                    "longest": int(length.to_list()[longest]) / 1e6,
                    "name": frame["name"].to_list()[longest],
                }
            )
    columns = (
        Column("rank", "Rank", kind="rank"),
        Column("lane", "Lane", kind="text"),
        Column("count", "Spans", "", "count"),
        Column("ms", "Sum", "ms"),
        Column("wait", "of it waiting", "ms"),
        Column("longest", "Longest", "ms"),
        Column("name", "Longest span", kind="code"),
    )
    records.sort(key=lambda record: record["rank"])
    return make_table(
        "timeline-data", f"Spans of the step ({window_ns / 1e6:,.1f} ms), per rank and lane", columns, records
    )
