"""What ran on GPUs: kernels, copies, and the calls of the driver that issued them."""

from __future__ import annotations

import re

import polars as pl

from ddiag.ingest.tf_events import Line
from ddiag.model.naming import copy_direction, is_communication, launch_kind

_COPY = re.compile(r"^(?:Memcpy|Memset)", re.IGNORECASE)
_NOT_WORK = re.compile(r"^(?:Memory(?:Alloc|Free|Residency)|Overhead|CUPTI|Unsupported|ThreadMarker)", re.IGNORECASE)
_SIZE = r"(?:size|num_bytes):(\d+)"


def device_work(events: pl.DataFrame, lines: list[Line]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(kernels, copies) from the stream lines alone: the others show the same time by step, operator or scope."""
    streams = {place: line.stream for place, line in enumerate(lines) if line.stream is not None}
    devices = {place: lines[place].device for place in streams}
    work = events.filter(pl.col("line").is_in(list(streams)) & (pl.col("end_ns") > pl.col("start_ns")))
    work = work.with_columns(
        pl.col("line").replace_strict(devices, return_dtype=pl.Int32).alias("device"),
        pl.col("line").replace_strict(streams, return_dtype=pl.Int64).alias("stream"),
        pl.col("correlation_id").fill_null(-1).alias("correlation"),
        pl.lit(-1, dtype=pl.Int64).alias("external_id"),
        pl.coalesce("memcpy_details", "memset_details").alias("details"),
    )
    names = work["name"].unique().to_list()
    copied = pl.col("details").is_not_null() | pl.col("name").is_in([name for name in names if _COPY.match(name)])
    ran = ~copied & ~pl.col("name").is_in([name for name in names if _NOT_WORK.match(name)])
    return _kernels(work.filter(ran)), _copies(work.filter(copied))


def _kernels(work: pl.DataFrame) -> pl.DataFrame:
    names = work["name"].unique().to_list()
    communication = pl.col("name").is_in([name for name in names if is_communication(name)])
    kind = pl.when(communication).then(pl.lit("communication")).otherwise(pl.lit("compute"))
    return work.with_columns(kind.alias("kind")).select(
        "device", "stream", "kind", "name", "start_ns", "end_ns", "correlation", "external_id"
    )


def _copies(work: pl.DataFrame) -> pl.DataFrame:
    directions = {name: copy_direction(name)[0] for name in work["name"].unique().to_list()}
    pageable, pinned = (pl.col("details").str.contains(rf"kind\w*:{kind}\b") for kind in ("pageable", "pinned"))
    return work.with_columns(
        pl.col("name").replace_strict(directions, default="unknown", return_dtype=pl.String).alias("direction"),
        pl.when(pageable).then(False).when(pinned).then(True).alias("pinned"),
        pl.col("details").str.extract(_SIZE).cast(pl.Int64, strict=False).alias("bytes"),
    ).select("device", "stream", "direction", "pinned", "bytes", "start_ns", "end_ns", "correlation", "external_id")


def launches(events: pl.DataFrame, lines: list[Line], kernels: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Driver calls on host threads. A call named after the kernel it launched is known by what it launched."""
    host = [place for place, line in enumerate(lines) if line.is_host]
    calls = events.filter(
        pl.col("line").is_in(host) & pl.col("correlation_id").is_not_null() & (pl.col("end_ns") >= pl.col("start_ns"))
    )
    kinds = {name: launch_kind(name) for name in calls["name"].unique().to_list()}
    said = pl.col("name").replace_strict(kinds, default="other", return_dtype=pl.String)
    kind = (
        pl.when(said != "other")
        .then(said)
        .when(pl.col("correlation_id").is_in(kernels["correlation"].unique().to_list()))
        .then(pl.lit("launch"))
        .when(pl.col("correlation_id").is_in(copies["correlation"].unique().to_list()))
        .then(pl.lit("copy"))
        .otherwise(said)
    )
    tids = pl.Series([line.tid for line in lines], dtype=pl.Int64)
    return calls.with_columns(
        tids.gather(calls["line"]).alias("tid"),
        kind.alias("kind"),
        pl.col("correlation_id").alias("correlation"),
        pl.lit(-1, dtype=pl.Int64).alias("external_id"),
    ).select("tid", "kind", "name", "start_ns", "end_ns", "correlation", "external_id")


def memory(events: pl.DataFrame) -> pl.DataFrame:
    """Allocator events (``MemoryAllocation``, ``MemoryDeallocation``); its reserve is not said."""
    found = events.filter(
        pl.col("name").is_in(["MemoryAllocation", "MemoryDeallocation"]) & pl.col("allocation_bytes").is_not_null()
    )
    index = pl.col("allocator_name").str.extract(r"^GPU_(\d+)")
    size = pl.col("allocation_bytes")
    return found.select(
        pl.when(index.is_not_null()).then(pl.format("cuda:{}", index)).otherwise(pl.lit("cpu")).alias("device"),
        pl.col("start_ns").alias("ts_ns"),
        pl.when(pl.col("name") == "MemoryAllocation").then(size).otherwise(-size).alias("bytes"),
        pl.col("bytes_allocated").alias("allocated_bytes"),
        pl.lit(None, dtype=pl.Int64).alias("reserved_bytes"),
    )
