"""Columns of codes to polars tables for one trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from ddiag.ingest.call_table import CallFacts, KernelCalls, call_table
from ddiag.ingest.categories import is_device_wait, is_old_annotation
from ddiag.ingest.collect import OP_KINDS, Collector
from ddiag.ingest.collectives import host_calls
from ddiag.ingest.values import BAD_TIME, IntColumn
from ddiag.model.naming import copy_direction, is_communication, launch_kind

Columns = dict[str, IntColumn]
Tables = dict[str, pl.DataFrame]

_COLUMNS = {
    "ops": (
        "name", "start_ns", "end_ns", "kind", "tid", "external_id", "sequence", "fwd_tid", "dims", "dtypes", "call",
    ),
    "launches": ("name", "start_ns", "end_ns", "tid", "correlation", "external_id"),
    "kernels": ("name", "start_ns", "end_ns", "device", "stream", "correlation", "external_id", "call"),
    "copies": ("name", "start_ns", "end_ns", "device", "stream", "correlation", "external_id", "bytes", "memset"),
    "memory": ("ts_ns", "device_type", "device_id", "bytes", "allocated_bytes", "reserved_bytes"),
}  # fmt: skip
_DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 18: "mtia", 9: "xla"}


def columns_of(collector: Collector, table: str) -> Columns:
    """The columns of *table*, chunks joined; the collector's own are released."""
    store = collector.columns.pop(table, {})
    return {
        name: np.concatenate(store.pop(name)) if name in store else np.zeros(0, dtype=np.int64)
        for name in _COLUMNS[table]
    }


def build(collector: Collector, facts: Callable[[Any], CallFacts]) -> tuple[Tables, Columns, Columns]:
    """All tables of one trace (times without its base), and the raw launches and ops for questions about threads."""
    names = list(collector.names)
    shared = _Shared(names)
    ops, launches = columns_of(collector, "ops"), columns_of(collector, "launches")
    kernels, copies = columns_of(collector, "kernels"), columns_of(collector, "copies")
    if collector.old_layout:
        _move_annotations(names, ops)
    _drop_waits(names, kernels)
    tables = {
        "ops": shared.ops(ops, list(collector.texts)),
        "launches": shared.launches(launches),
        "kernels": shared.kernels(kernels),
        "copies": shared.copies(copies),
        "memory": _memory(columns_of(collector, "memory")),
    }
    communication = shared.flags(kernels["name"], is_communication)
    found = call_table(_kernel_calls(names, kernels, launches, communication), host_calls(names, ops), facts(collector))
    if found is not None:
        tables["collectives"] = found
    if collector.counters:
        tables["counters"] = pl.DataFrame(collector.counters, schema=["name", "ts_ns", "value"], orient="row")
    return {name: table for name, table in tables.items() if not table.is_empty()}, launches, ops


class _Shared:
    """Lookups by name code, made once per unique name."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._categories = pl.Series(names, dtype=pl.String).cast(pl.Categorical)

    def named(self, codes: IntColumn) -> pl.Series:
        return _taken(self._categories, codes)

    def flags(self, codes: IntColumn, test: Callable[[str], bool]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        table = np.zeros(len(self._names), dtype=bool)
        for code in _used(codes):
            table[code] = test(self._names[code])
        return table[codes]

    def words(self, codes: IntColumn, say: Callable[[str], str]) -> pl.Series:
        """A categorical column of ``say(name)``."""
        table = np.zeros(len(self._names), dtype=np.int64)
        spoken: dict[str, int] = {}
        for code in _used(codes):
            table[code] = spoken.setdefault(say(self._names[code]), len(spoken))
        return _taken(pl.Series(list(spoken), dtype=pl.String).cast(pl.Categorical), table[codes])

    def ops(self, columns: Columns, texts: list[bytes]) -> pl.DataFrame:
        shapes = pl.Series([text.decode("utf-8", "replace") for text in texts] or [""], dtype=pl.String)
        return pl.DataFrame(
            {
                "tid": columns["tid"],
                "kind": pl.Series(OP_KINDS).cast(pl.Categorical).gather(columns["kind"]),
                "name": self.named(columns["name"]),
                "start_ns": columns["start_ns"],
                "end_ns": columns["end_ns"],
                "external_id": columns["external_id"],
                "sequence": columns["sequence"],
                "fwd_tid": columns["fwd_tid"],
                **{key: _texts(shapes, columns[key]) for key in ("dims", "dtypes") if texts},
            }
        )

    def launches(self, columns: Columns) -> pl.DataFrame:
        return pl.DataFrame(
            {
                "tid": columns["tid"],
                "kind": self.words(columns["name"], launch_kind),
                "name": self.named(columns["name"]),
                **{key: columns[key] for key in ("start_ns", "end_ns", "correlation", "external_id")},
            }
        )

    def kernels(self, columns: Columns) -> pl.DataFrame:
        def kind(name: str) -> str:
            return "communication" if is_communication(name) else "compute"

        return pl.DataFrame(
            {
                "device": columns["device"],
                "stream": columns["stream"],
                "kind": self.words(columns["name"], kind),
                "name": self.named(columns["name"]),
                **{key: columns[key] for key in ("start_ns", "end_ns", "correlation", "external_id")},
            }
        )

    def copies(self, columns: Columns) -> pl.DataFrame:
        codes = columns["name"]
        pinned = np.full(len(self._names), -1, dtype=np.int64)
        for code in _used(codes):
            known = copy_direction(self._names[code])[1]
            pinned[code] = -1 if known is None else int(known)
        direction = self.words(codes, lambda name: copy_direction(name)[0])
        frame = pl.DataFrame(
            {
                "device": columns["device"],
                "stream": columns["stream"],
                "direction": direction,
                "pinned": pinned[codes],
                "memset": columns["memset"],
                "bytes": columns["bytes"],
                **{key: columns[key] for key in ("start_ns", "end_ns", "correlation", "external_id")},
            }
        )
        return frame.with_columns(
            pl.when(pl.col("memset") == 1)
            .then(pl.lit("memset"))
            .otherwise(pl.col("direction").cast(pl.String))
            .cast(pl.Categorical)
            .alias("direction"),
            pl.when(pl.col("pinned") >= 0).then(pl.col("pinned") == 1).alias("pinned"),
            _known("bytes", pl.col("bytes") >= 0),
        ).drop("memset")


def _used(codes: IntColumn) -> list[int]:
    """The different codes; counting finds them without sorting."""
    used: list[int] = np.flatnonzero(np.bincount(codes)).tolist()
    return used


def _taken(values: pl.Series, codes: IntColumn | pl.Series) -> pl.Series:
    taken: pl.Series = values.gather(codes)
    return taken


def _known(column: str, condition: pl.Expr) -> pl.Expr:
    return pl.when(condition).then(pl.col(column)).alias(column)


def _texts(values: pl.Series, codes: IntColumn) -> pl.Series:
    """Shared text for codes, null for -1."""
    positions = pl.Series(codes)
    return _taken(values, pl.select(pl.when(positions >= 0).then(positions)).to_series())


def _memory(columns: Columns) -> pl.DataFrame:
    code = (columns["device_type"] << 20) + columns["device_id"]
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    kinds, indices = columns["device_type"][first].tolist(), columns["device_id"][first].tolist()
    devices = pl.Series(list(map(_device_name, kinds, indices)), dtype=pl.String)
    frame = pl.DataFrame(
        {
            "device": devices.gather(place),
            **{key: columns[key] for key in ("ts_ns", "bytes", "allocated_bytes", "reserved_bytes")},
        }
    )
    return frame.filter(pl.col("ts_ns") != BAD_TIME).with_columns(
        *(_known(key, pl.col(key) != BAD_TIME) for key in ("bytes", "allocated_bytes", "reserved_bytes"))
    )


def _device_name(kind: int, index: int) -> str:
    name = _DEVICE_TYPES.get(kind, f"device{kind}")
    return name if name == "cpu" else f"{name}:{index}"


def _move_annotations(names: list[str], ops: Columns) -> None:
    """Old layout: the annotations among the operators get their own kind."""
    marks = np.array([is_old_annotation(name) for name in names], dtype=bool)
    if marks.any():
        ops["kind"] = np.where((ops["kind"] == 0) & marks[ops["name"]], 1, ops["kind"])


def _drop_waits(names: list[str], kernels: Columns) -> None:
    marks = np.array([is_device_wait(name) for name in names], dtype=bool)
    if marks.any():
        keep = ~marks[kernels["name"]]
        for key in kernels:
            kernels[key] = kernels[key][keep]


def _kernel_calls(
    names: list[str], kernels: Columns, launches: Columns, communication: np.ndarray[Any, np.dtype[np.bool_]]
) -> KernelCalls:
    rows = np.flatnonzero(communication)
    correlation = kernels["correlation"][rows]
    order = np.argsort(launches["correlation"], kind="stable")
    known = launches["correlation"][order]
    place = np.minimum(np.searchsorted(known, correlation), max(len(known) - 1, 0))
    hit = (known[place] == correlation) & (correlation >= 0) if len(known) else np.zeros(len(rows), dtype=bool)
    launch = order[place] if len(known) else np.zeros(len(rows), dtype=np.int64)
    none = np.full(len(rows), -1, dtype=np.int64)
    return KernelCalls(
        names=names,
        name=kernels["name"][rows],
        start=kernels["start_ns"][rows],
        end=kernels["end_ns"][rows],
        stream=kernels["stream"][rows],
        call=kernels["call"][rows],
        external_id=kernels["external_id"][rows],
        launch_tid=np.where(hit, launches["tid"][launch], none) if hit.any() else none,
        launch_start=np.where(hit, launches["start_ns"][launch], none) if hit.any() else none,
    )
