"""The spans of a trace for Perfetto: what was recorded, and what ddiag derived, in one shape."""

from __future__ import annotations

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals import Collectives, Memory, Signals, StepBudget

FINDINGS_LANE = "ddiag findings"
LANE_ORDER = ("steps", "waiting", "main", "thread", "gpu_annotation", "stream")
"""Kinds of lanes of a rank, top to bottom."""
SPAN_COLUMNS = ("rank", "lane_kind", "lane", "name", "cat", "start_ns", "end_ns", "args", "correlation")
"""``args`` is JSON text; the categories are Kineto's, so that tools which read Kineto traces read this one."""
SHORTEST_WAIT_MS = 0.01
_SCHEMA = {
    "rank": pl.Int32, "lane_kind": pl.String, "lane": pl.String, "name": pl.String, "cat": pl.String,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "args": pl.String, "correlation": pl.Int64,
}  # fmt: skip
_COPY_NAMES = {
    "h2d": "Memcpy HtoD", "d2h": "Memcpy DtoH", "d2d": "Memcpy DtoD (Device -> Device)", "p2p": "Memcpy PtoP",
    "h2h": "Memcpy HtoH", "memset": "Memset (Device)", "unknown": "Memcpy",
}  # fmt: skip
_OP_CATEGORIES = {"op": "cpu_op", "annotation": "user_annotation", "gpu_annotation": "gpu_user_annotation"}


def recorded(run: Run) -> pl.DataFrame:
    """Operators, annotations, runtime calls, kernels and copies of all ranks. Python frames are left out (too many)."""
    return pl.concat([_ops(run), _launches(run), _kernels(run), _copies(run)])


def derived(signals: Signals) -> pl.DataFrame:
    """Steps and waits for late ranks, as derived."""
    return pl.concat([_steps(signals), _waits(signals)])


def _shaped(frame: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
    """*frame* as spans; without a *correlation* nothing links them to others."""
    columns.setdefault("correlation", pl.lit(-1))
    return frame.select("rank", "start_ns", "end_ns", **columns).select(
        pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items()
    )


def _ops(run: Run) -> pl.DataFrame:
    main = run.table("ranks").select("rank", "main_tid").unique("rank")
    ops = (
        run.table("ops")
        .with_columns(pl.col("kind").cast(pl.String))
        .filter(pl.col("kind") != "python")
        .join(main, on="rank", how="left")
    )
    on_gpu = pl.col("kind") == "gpu_annotation"
    return _shaped(
        ops,
        lane_kind=pl.when(on_gpu).then(pl.lit("gpu_annotation")).otherwise(_host_lane_kind()),
        lane=pl.when(on_gpu).then(pl.format("device annotations {}", "tid")).otherwise(_host_lane()),
        name=pl.col("name"),
        cat=pl.col("kind").replace_strict(_OP_CATEGORIES, default="cpu_op"),
        args=_args("External id", "external_id"),
    )


def _launches(run: Run) -> pl.DataFrame:
    main = run.table("ranks").select("rank", "main_tid").unique("rank")
    return _shaped(
        run.table("launches").join(main, on="rank", how="left"),
        lane_kind=_host_lane_kind(),
        lane=_host_lane(),
        name=pl.col("name"),
        cat=pl.lit("cuda_runtime"),
        args=_args("correlation", "correlation"),
        correlation=pl.col("correlation"),
    )


def _host_lane_kind() -> pl.Expr:
    return pl.when(pl.col("tid") == pl.col("main_tid")).then(pl.lit("main")).otherwise(pl.lit("thread"))


def _host_lane() -> pl.Expr:
    return (
        pl.when(pl.col("tid") == pl.col("main_tid"))
        .then(pl.format("thread {} (training)", "tid"))
        .otherwise(pl.format("thread {}", "tid"))
    )


def _kernels(run: Run) -> pl.DataFrame:
    return _shaped(
        run.table("kernels"),
        lane_kind=pl.lit("stream"),
        lane=_stream_lane(),
        name=pl.col("name"),
        cat=pl.lit("kernel"),
        args=_device_args(),
        correlation=pl.col("correlation"),
    )


def _copies(run: Run) -> pl.DataFrame:
    direction = pl.col("direction").cast(pl.String)
    kind = (
        pl.when(direction == "h2d")
        .then(_by_pinning("Memcpy HtoD ({} -> Device)"))
        .when(direction == "d2h")
        .then(_by_pinning("Memcpy DtoH (Device -> {})"))
        .otherwise(direction.replace_strict(_COPY_NAMES, default="Memcpy"))
    )
    return _shaped(
        run.table("copies"),
        lane_kind=pl.lit("stream"),
        lane=_stream_lane(),
        name=kind,
        cat=pl.when(direction == "memset").then(pl.lit("gpu_memset")).otherwise(pl.lit("gpu_memcpy")),
        args=_device_args(with_bytes=True),
        correlation=pl.col("correlation"),
    )


def _by_pinning(pattern: str) -> pl.Expr:
    pinned = pl.col("pinned")
    return (
        pl.when(pinned)
        .then(pl.lit(pattern.format("Pinned")))
        .when(~pinned)
        .then(pl.lit(pattern.format("Pageable")))
        .otherwise(pl.lit(pattern.partition(" (")[0]))
    )


def _stream_lane() -> pl.Expr:
    return pl.format("device {} stream {}", pl.col("device"), pl.col("stream"))


def _device_args(*, with_bytes: bool = False) -> pl.Expr:
    size = [pl.format(',"bytes":{}', pl.col("bytes").fill_null(0))] if with_bytes else [pl.lit("")]
    numbers = pl.format('"device":{},"stream":{},"correlation":{}', "device", "stream", "correlation")
    return pl.concat_str(pl.lit("{"), numbers, *size, pl.lit("}"))


def _args(label: str, column: str) -> pl.Expr:
    """One number as JSON object; empty when there is none (-1)."""
    given = pl.concat_str(pl.lit(f'{{"{label}":'), pl.col(column).cast(pl.String), pl.lit("}"))
    return pl.when(pl.col(column) >= 0).then(given).otherwise(pl.lit("{}"))


def counters(signals: Signals) -> pl.DataFrame:
    """rank, name, ts_ns, value: device memory over time, in MiB (thinned)."""
    memory = signals.get(Memory)
    if memory is None:
        return pl.DataFrame(schema={"rank": pl.Int32, "name": pl.String, "ts_ns": pl.Int64, "value": pl.Float64})
    return (
        memory.timeline.unpivot(
            ["allocated_bytes", "reserved_bytes"], index=["rank", "device", "ts_ns"], variable_name="kind"
        )
        .drop_nulls("value")
        .select(
            "rank",
            name=pl.format("{} MiB, {}", pl.col("kind").str.strip_suffix("_bytes"), "device"),
            ts_ns="ts_ns",
            value=pl.col("value") / (1 << 20),
        )
    )


def _steps(signals: Signals) -> pl.DataFrame:
    budget = signals.get(StepBudget)
    if budget is None:
        return pl.DataFrame(schema=_SCHEMA)
    left_out = pl.when(pl.col("steady")).then(pl.lit("")).otherwise(pl.lit(" (left out)"))
    return _shaped(
        budget.table,
        lane_kind=pl.lit("steps"),
        lane=pl.lit("steps"),
        name=pl.format("step {}{}", "step", left_out),
        cat=pl.lit("ddiag"),
        args=pl.lit("{}"),
    )


def _waits(signals: Signals) -> pl.DataFrame:
    """The part of each call that a rank spends waiting for the last one to arrive."""
    calls = signals.get(Collectives)
    if calls is None:
        return pl.DataFrame(schema=_SCHEMA)
    waits = calls.table.filter(pl.col("wait_ms") >= SHORTEST_WAIT_MS)
    wait_ns = (pl.col("wait_ms") * 1e6).round().cast(pl.Int64)
    return _shaped(
        waits.with_columns(end_ns=pl.min_horizontal(pl.col("start_ns") + wait_ns, "end_ns")),
        lane_kind=pl.lit("waiting"),
        lane=pl.lit("waiting for a rank"),
        name=pl.format("waiting in {}", "op"),
        cat=pl.lit("ddiag"),
        args=pl.lit("{}"),
    )
