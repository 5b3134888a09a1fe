"""What a rank did differently from its peers before it arrived late: computed more, computed slower, waited for input,
or let the device idle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.host_names import is_loader
from ddiag.analysis.host_spans import loader_spans
from ddiag.analysis.intervals import covered, subtract
from ddiag.analysis.names import of_kind, outermost, spans_union, times, where_name
from ddiag.analysis.rank_walk import by_rank
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run

MIN_SHARE = 0.4
"""Share of the lateness that the largest difference must explain to be called its cause."""
MIN_SLOWDOWN = 1.05
"""Ratio from which the same kernels count as slower; boost clocks differ by a few per cent."""
_KERNELS = 200
"""Kernels compared: the costliest."""
_MANY_PEERS = 16
_SAME_COUNT = 0.1
"""Relative difference of kernel counts up to which two ranks ran the same work."""

PARTS = ("input_ms", "compute_ms", "host_ms")


def differences(
    run: Run, windows: StepWindows, acts: Mapping[int, RankActivity], peers: Mapping[int, set[int]]
) -> pl.DataFrame:
    """rank, input_ms, compute_ms, host_ms: mean per steady step minus the median of its *peers*; kernel_slowdown."""
    own = _parts(run, windows, acts)
    table = {int(row["rank"]): row for row in own.iter_rows(named=True)}
    slowdown = kernel_slowdown(run, windows, peers)
    rows = []
    for rank, row in table.items():
        others = [table[peer] for peer in sorted(peers.get(rank, set())) if peer in table]
        excess = {
            part: row[part] - float(np.median([other[part] for other in others])) if others else None for part in PARTS
        }
        rows.append({"rank": rank, **excess, "kernel_slowdown": slowdown.get(rank)})
    schema = {"rank": pl.Int32, **dict.fromkeys(PARTS, pl.Float64), "kernel_slowdown": pl.Float64}
    return pl.DataFrame(rows, schema=schema)


def _parts(run: Run, windows: StepWindows, acts: Mapping[int, RankActivity]) -> pl.DataFrame:
    """Per rank, ms per steady step: computing, idle in the data loader, idle otherwise."""
    spans = _loader_spans(run)
    loader = dict(by_rank(spans))
    rows = []
    for rank, steps in by_rank(windows.table.filter("steady")):
        act = acts.get(rank)
        if act is None:
            continue
        start, end = times(steps, "start_ns"), times(steps, "end_ns")
        waiting = subtract(spans_union(loader.get(rank, spans.clear())), act.busy)
        compute, busy, stalled, total = (
            float(sum_ns) / len(start) / 1e6
            for sum_ns in (*(covered(spans, start, end).sum() for spans in (act.compute, act.busy, waiting)),
                           (end - start).sum())
        )  # fmt: skip
        rows.append(
            {"rank": rank, "input_ms": stalled, "compute_ms": compute, "host_ms": max(total - busy - stalled, 0.0)}
        )
    return pl.DataFrame(rows, schema={"rank": pl.Int32, **dict.fromkeys(PARTS, pl.Float64)})


def _loader_spans(run: Run) -> pl.DataFrame:
    """Outermost waits for input on each rank's training thread (any thread where that is unknown)."""
    if run.recorded:
        return pl.concat([loader_spans(run, rank) for rank in run.table("ranks")["rank"].sort().to_list()])
    spans = where_name(run.table("ops").filter(pl.col("kind") != "gpu_annotation"), is_loader)
    threads = run.table("ranks").select("rank", "main_tid").unique("rank")
    mine = spans.join(threads, on="rank", how="left").filter(
        pl.col("main_tid").is_null() | (pl.col("tid") == pl.col("main_tid"))
    )
    return outermost(mine)


def kernel_slowdown(run: Run, windows: StepWindows, peers: Mapping[int, set[int]]) -> dict[int, float]:
    """Per rank the time-weighted median over kernels of its mean duration / the median of its peers' means.

    Only kernels that rank and peers ran about equally often count, so a different amount of work does not pass for
    slowness; without such kernels the rank is absent.
    """
    means = _costliest(_kernel_means(run, windows))
    by_name: dict[frozenset[int], pl.DataFrame] = {}
    found = {}
    for rank, mine in by_rank(means):
        others = frozenset(peers.get(rank, set()))
        if len(others) >= _MANY_PEERS:
            others |= {rank}  # so that ranks with the same peers share the medians, which one rank hardly moves
        if others not in by_name:
            among = means.filter(pl.col("rank").is_in(list(others)))
            by_name[others] = among.group_by("name").agg(pl.col("count").median(), pl.col("mean_ns").median())
        both = mine.join(by_name[others], on="name", suffix="_usual")
        alike = (pl.col("count") / pl.col("count_usual") - 1.0).abs() <= _SAME_COUNT
        both = both.filter(alike & (pl.col("mean_ns_usual") > 0)).with_columns(
            ratio=pl.col("mean_ns") / pl.col("mean_ns_usual"), weight=pl.col("count") * pl.col("mean_ns_usual")
        )
        ratio = _weighted_median(both.sort("ratio"))
        if ratio is not None:
            found[rank] = ratio
    return found


def _costliest(means: pl.DataFrame) -> pl.DataFrame:
    """The rows of the kernels that most time goes to."""
    cost = (pl.col("count") * pl.col("mean_ns")).sum().alias("cost")
    names = means.group_by("name").agg(cost).top_k(_KERNELS, by="cost").select("name")
    return means.join(names, on="name", how="semi")


def _kernel_means(run: Run, windows: StepWindows) -> pl.DataFrame:
    """rank, name, count, mean_ns of compute kernels between the first and the last steady step of each rank."""
    bounds = (
        windows.table.filter("steady")
        .group_by("rank")
        .agg(begin=pl.col("start_ns").min(), finish=pl.col("end_ns").max())
        .with_columns(pl.col("rank").cast(pl.Int32))
    )
    return (
        of_kind(run.table("kernels"), "compute")
        .lazy()
        .join(bounds.lazy(), on="rank")
        .filter((pl.col("start_ns") >= pl.col("begin")) & (pl.col("start_ns") < pl.col("finish")))
        .group_by("rank", "name")
        .agg(count=pl.len(), mean_ns=(pl.col("end_ns") - pl.col("start_ns")).mean())
        .sort("rank")
        .collect()
    )


def _weighted_median(ordered: pl.DataFrame) -> float | None:
    if ordered.is_empty():
        return None
    weight = ordered["weight"].cum_sum()
    return float(ordered["ratio"][int((weight >= float(weight[-1]) / 2).arg_max() or 0)])


def cause(row: Mapping[str, float | None], late_ms: float, compute_ms: float | None) -> str:
    """Why a rank is late by *late_ms* per step: compute, device, input, host or unknown.

    *row*: its differences; *compute_ms*: its computing per step. The largest difference is the cause if it explains
    enough of the lateness. More computing by the same kernels, all slower, is the device.
    """
    known = {part: value for part in PARTS if (value := row.get(part)) is not None}
    if not known or late_ms <= 0:
        return "unknown"
    part = max(known, key=lambda name: known[name])
    if known[part] < MIN_SHARE * late_ms:
        return "unknown"
    if part != "compute_ms":
        return part.removesuffix("_ms")
    slowdown = row.get("kernel_slowdown")
    if slowdown is not None and compute_ms and slowdown >= MIN_SLOWDOWN:
        by_slowness = compute_ms * (1.0 - 1.0 / slowdown)
        if by_slowness >= 0.5 * known[part]:
            return "device"
    return "compute"
