"""Gradient reductions of data parallelism: the buckets of DDP and its like, or a loop of all-reduces after backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from ddiag.analysis.activity import RankActivity
from ddiag.analysis.backward import MIN_GRADIENT_BYTES, Backward, backward
from ddiag.analysis.bandwidth import LatencyBandwidth, fit_latency_bandwidth
from ddiag.analysis.bucket_model import BucketAdvice, ReadyCurve, advise
from ddiag.analysis.intervals import Intervals, Times, covered, subtract, union
from ddiag.analysis.launched import device_passes
from ddiag.analysis.names import times
from ddiag.analysis.shard_units import sharding_framework
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, GradBuckets

MAX_RANKS = 8
"""Ranks looked at: buckets are the same on all of them."""
MIN_PARAMETERS = 4
"""Parameters from which "one call per parameter" is not a coincidence."""
_BUCKET = r"^(?:ddp\d+|zero)/bucket"
"""Label of a bucket in a recording."""
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_INTEGERS = r"(?i)^(?:nccl)?(?:c10::)?(?:u?int|long|byte|char|bool|short|i32|i64)"


def grad_buckets(
    run: Run, windows: StepWindows, acts: Mapping[int, RankActivity], collectives: Collectives | None
) -> GradBuckets | None:
    """The gradient reductions of steady steps; None where there are none or parameters are sharded."""
    if collectives is None or sharding_framework(run, collectives):
        return None
    seen = [rank for rank in _sample(collectives) if rank in acts]
    jobs = [job for rank in seen if (job := _rank_job(run, windows, acts[rank], collectives, rank)) is not None]
    if not jobs:
        return None
    calls = pl.concat([job.calls for job in jobs])
    link = _link(collectives.table, calls)
    table = _table(calls)
    curve = _ready_curve(table, jobs)
    tail_ms, exposed_ms = (float(np.mean([getattr(job, name) for job in jobs])) for name in ("tail_ms", "exposed_ms"))
    advice = advise(curve, link, exposed_ms) if curve is not None and link is not None else None
    return _signal(calls, table, jobs, link, advice, tail_ms=tail_ms, exposed_ms=exposed_ms)


def _sample(collectives: Collectives) -> list[int]:
    ranks = collectives.table["rank"].unique().sort().to_list()
    at = np.unique(np.linspace(0, len(ranks) - 1, min(MAX_RANKS, len(ranks))).round().astype(int))
    return [int(ranks[k]) for k in at]


@dataclass(frozen=True)
class _RankJob:
    """Gradient reductions of one rank."""

    calls: pl.DataFrame
    """Reductions with ``pass`` (which backward), ``index`` (position in it), ``offset_ms`` and ``ready_ms`` from the
    start of backward on the device, ``cost_ms`` (exposed, without waiting)."""
    backward_ms: float
    tail_ms: float
    exposed_ms: float
    passes_per_step: float
    """Reducing backward passes per steady step."""
    accumulation: int
    synced: int
    issued: str


def _rank_job(
    run: Run, windows: StepWindows, act: RankActivity, collectives: Collectives, rank: int
) -> _RankJob | None:
    host = backward(run, rank)
    if not len(host.passes):
        return None
    calls, issued = _gradient_calls(collectives.table.filter(pl.col("rank") == rank), host)
    steady = windows.table.filter(pl.col("steady") & (pl.col("rank") == rank))
    if calls.is_empty() or steady.is_empty():
        return None
    if run.recorded and issued == "backward":
        host = replace(host, passes=_until_last_gradient(host, calls))
    device = device_passes(run, rank, host.passes) if act.on_device else host.passes
    calls = _placed(calls, host, device)
    reducing = calls["pass"].unique().sort().to_numpy()
    alone = subtract(_transfer_spans(calls), act.compute)
    start, end = times(steady, "start_ns"), times(steady, "end_ns")
    accumulation, synced = _accumulation(host, reducing)
    return _RankJob(
        calls=calls,
        backward_ms=float(np.median(np.diff(device[reducing], axis=1))) / 1e6,
        tail_ms=float(covered(_after(alone, device, reducing), start, end).sum()) / len(start) / 1e6,
        exposed_ms=float(covered(alone, start, end).sum()) / len(start) / 1e6,
        passes_per_step=_per_step(steady, host.passes[:, 0]) * synced / accumulation,
        accumulation=accumulation,
        synced=synced,
        issued=issued,
    )


def _until_last_gradient(host: Backward, calls: pl.DataFrame) -> Intervals:
    """A recorded pass ends when the reducer has waited for its reductions: here with the last one that was issued.

    On a device nobody waits, and the host's pass ends long before the device's.
    """
    on_host = calls.filter(pl.col("source") == "host")
    passes: Intervals = host.passes.copy()
    at = times(on_host, "issued_ns")
    inside = host.within(at)
    number = host.pass_of(at)[inside]
    last = np.zeros(len(passes), dtype=np.int64)
    np.maximum.at(last, number, at[inside])
    passes[:, 1] = np.where(last > passes[:, 0], last, passes[:, 1])
    return passes


def _per_step(steady: pl.DataFrame, begins: Times) -> float:
    """How many of the host's moments *begins* fall into one of the steady steps, on average."""
    windows = union(times(steady, "host_start_ns"), times(steady, "host_end_ns"))
    return float(np.count_nonzero(covered(windows, begins, begins + 1))) / steady.height


def _gradient_calls(calls: pl.DataFrame, host: Backward) -> tuple[pl.DataFrame, str]:
    """Reductions issued by hooks of finished gradients; else one per parameter from inside a compiled backward; else
    those between backward and the optimizer step.
    """
    calls = calls.filter(
        pl.col("op").is_in(_REDUCTIONS) & ~pl.col("dtype").fill_null("").str.contains(_INTEGERS)
    ).with_columns(issued_ns=pl.coalesce("enqueue_ns", "start_ns"))
    named = calls.filter(pl.col("label").fill_null("").str.contains(_BUCKET))
    if named.height:
        return named, _in_backward(named)
    at = times(calls, "issued_ns")
    hooked = calls.filter(pl.Series(host.during(at), dtype=pl.Boolean) & ~_tiny())
    if hooked.height:
        return hooked, _in_backward(hooked)
    compiled = calls.filter(pl.Series(host.within(at), dtype=pl.Boolean) & ~_tiny())
    if _one_per_parameter(compiled, host):
        return compiled, "backward"
    after = calls.filter(pl.Series(host.after(at), dtype=pl.Boolean) & ~_tiny())
    unsized = after["bytes"].null_count() > 0 and not _one_per_parameter(after, host)
    if unsized or compiled.height > after.height:  # calls of unknown purpose during backward: do not guess
        return after.clear(), ""
    return after, "after_backward"


def _in_backward(calls: pl.DataFrame) -> str:
    """Hooks that wait for each reduction stop backward; where it is not known, they do not."""
    awaited = (~pl.col("asynchronous")).fill_null(value=False)
    return "synchronous" if calls.select(awaited.all()).item() else "backward"


def _one_per_parameter(calls: pl.DataFrame, host: Backward) -> bool:
    """As many calls per reducing pass as gradients were accumulated in it: tells them from tensor parallelism."""
    if calls.is_empty() or host.leaves_per_pass < MIN_PARAMETERS:
        return False
    passes = len(np.unique(host.pass_of(times(calls, "issued_ns"))))
    return abs(calls.height / passes / host.leaves_per_pass - 1.0) <= 0.1


def _tiny() -> pl.Expr:
    return (pl.col("bytes") < MIN_GRADIENT_BYTES).fill_null(value=False)


def _placed(calls: pl.DataFrame, host: Backward, device: Intervals) -> pl.DataFrame:
    """Add the backward pass, the position in it, and when it began and was ready, from the start of that pass.

    The moment of issue on the host is carried over to the device in proportion: both traverse the same backward.
    """
    calls = calls.sort("issued_ns", "start_ns")
    at = times(calls, "issued_ns")
    number = host.pass_of(at)
    begin, length = device[number, 0], device[number, 1] - device[number, 0]
    host_begin, host_length = host.passes[number, 0], host.passes[number, 1] - host.passes[number, 0]
    ready = np.clip((at - host_begin) / np.maximum(host_length, 1), 0.0, 1.0) * length
    started = times(calls, "start_ns") - begin
    waited = pl.col("exposed_wait_ms").fill_null(0.0)
    return calls.with_columns(
        pl.Series("pass", number),
        pl.Series("offset_ms", started / 1e6),
        pl.Series("ready_ms", np.minimum(ready, np.maximum(started, 0)) / 1e6),
        cost_ms=pl.col("exposed_ms") - waited,
    ).with_columns(index=pl.int_range(pl.len()).over("pass"), in_pass=pl.len().over("pass"))


def _transfer_spans(calls: pl.DataFrame) -> Intervals:
    """When the reductions moved data; waiting for late ranks left out where it is known."""
    start, end = times(calls, "start_ns"), times(calls, "end_ns")
    waited = (calls["wait_ms"].fill_null(0.0).to_numpy() * 1e6).round().astype(np.int64)
    return union(np.minimum(start + waited, end), end)


def _after(alone: Intervals, device: Intervals, reducing: Times) -> Intervals:
    """The part of *alone* between the end of a reducing pass and the beginning of the next pass."""
    begins = np.append(device[1:, 0], np.iinfo(np.int64).max)
    gaps = np.column_stack((device[reducing, 1], begins[reducing]))
    gaps = gaps[gaps[:, 1] > gaps[:, 0]]
    return subtract(alone, subtract(alone, union(gaps[:, 0], gaps[:, 1])))


def _accumulation(host: Backward, reducing: Times) -> tuple[int, int]:
    """(backward passes, reducing backward passes) per optimizer step: medians between consecutive optimizer steps."""
    starts = host.optimizer[:, 0]
    if not len(starts):
        return 1, 1
    epoch = np.searchsorted(starts, host.passes[:, 0], side="right")
    synced = np.zeros(len(host.passes), dtype=bool)
    synced[reducing] = True
    # Passes before the first optimizer step may be cut by the beginning of the capture, those after the last by its
    # end.
    whole = slice(1, len(starts)) if len(starts) > 1 else slice(0, 1)
    counts = (np.bincount(chosen, minlength=len(starts) + 1) for chosen in (epoch, epoch[synced]))
    passes, with_reduction = (found[whole] for found in counts)
    return max(round(float(np.median(passes))), 1), max(round(float(np.median(with_reduction))), 1)


def _link(table: pl.DataFrame, calls: pl.DataFrame) -> LatencyBandwidth | None:
    """Latency and bandwidth of one reduction, from all calls of the same kind in the groups that reduce gradients.

    Only from pure transfers, as waiting would pass for latency.
    """
    kind = calls.select("comm", "op").unique()
    whole = pl.col("transfer_ms").is_not_null() & (pl.col("ranks_matched") == pl.col("group_size"))
    pure = table.join(kind, on=["comm", "op"], how="semi").filter((pl.col("bytes") > 0) & whole)
    return fit_latency_bandwidth(pure["bytes"].to_list(), pure["transfer_ms"].to_list())


def _table(calls: pl.DataFrame) -> pl.DataFrame:
    """Means by position over the passes that have the usual number of reductions."""
    usual = calls.unique(["rank", "pass"])["in_pass"].mode().max()
    return (
        calls.filter(pl.col("in_pass") == usual)
        .group_by("index")
        .agg(
            pl.col("bytes").median().fill_null(0).cast(pl.Int64),
            pl.col("dur_ms").mean(),
            pl.col("transfer_ms").mean(),
            pl.col("cost_ms").mean().alias("exposed_ms"),
            pl.col("offset_ms").mean().alias("start_offset_ms"),
            pl.col("ready_ms").mean().alias("ready_after_ms"),
        )
        .sort("index")
    )


def _ready_curve(table: pl.DataFrame, jobs: list[_RankJob]) -> ReadyCurve | None:
    """None without sizes, or when gradients are reduced only after backward."""
    if jobs[0].issued != "backward" or not (table["bytes"] > 0).all():
        return None
    ready = np.maximum.accumulate(table["ready_after_ms"].to_numpy())
    return ReadyCurve(
        ready, table["bytes"].to_numpy().astype(np.float64), float(np.median([job.backward_ms for job in jobs]))
    )


def _signal(
    calls: pl.DataFrame,
    table: pl.DataFrame,
    jobs: list[_RankJob],
    link: LatencyBandwidth | None,
    advice: BucketAdvice | None,
    *,
    tail_ms: float,
    exposed_ms: float,
) -> GradBuckets:
    sizes = calls["bytes"].drop_nulls()
    synced = max(job.synced for job in jobs)
    passes = float(np.mean([job.passes_per_step for job in jobs]))
    return GradBuckets(
        table=table,
        count_per_step=table.height * passes,
        reductions_per_optimizer_step=float(table.height * synced),
        total_bytes=round(float(table["bytes"].sum()) * passes),
        median_bytes=int(np.median(sizes.to_numpy())) if len(sizes) else 0,
        # Of usual passes: the first of DDP has one bucket of everything, before its buckets are built again.
        largest_bytes=int(table["bytes"].to_numpy().max()) if table.height else 0,
        tail_exposed_ms=tail_ms,
        exposed_ms=exposed_ms,
        alpha_us=link.alpha_us if link else None,
        beta_gbps=link.beta_gbps if link else None,
        best_bytes=advice.best_bytes if advice else None,
        predicted_gain_ms=advice.predicted_gain_ms if advice else None,
        accumulation=max(job.accumulation for job in jobs),
        synced_backwards=synced,
        issued=jobs[0].issued,
    )
