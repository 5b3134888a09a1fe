"""Records of a ring and step summaries as tables of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.ingest.rings import Records
from ddiag.ingest.step_file import Summaries
from ddiag.model.recorded import SUMMED_PHASES
from ddiag.model.tables import TABLES
from ddiag.schema.phases import Copy, Flag, Kind, Op, Pause, Phase, State, Unit
from ddiag.schema.ring import NO_DTYPE
from ddiag.schema.steps import StepFlag

Times = npt.NDArray[np.int64]

WAIT = "wait"
"""Phase of the host's waits for communication."""
_OPS = {int(op): op.name.lower() for op in Op}
_PHASES = {int(phase): phase.name.lower() for phase in Phase}
_PAUSES = {int(Pause.GC): "gc"}
_UNITS = {int(unit): unit.name.lower() for unit in Unit}
_COPIES = {int(Copy.H2D): "h2d", int(Copy.D2H): "d2h"}
_HOST_COPIES = {
    int(Copy.CPU_OPTIMIZER): "cpu_optimizer",
    int(Copy.SWAP_IN): "swap_in",
    int(Copy.SWAP_OUT): "swap_out",
}
"""Of offloading, what is work of the host rather than of the link between host and device."""
_SUMMARY_FLAGS = {
    "skipped": StepFlag.OPTIMIZER_SKIPPED,
    "evaluated": StepFlag.EVALUATION,
    "saved": StepFlag.CHECKPOINT,
    "logged": StepFlag.LOGGING,
    "compiled": StepFlag.COMPILED,
    "profiled": StepFlag.PROFILED,
    "clipped_scaled": StepFlag.CLIP_BEFORE_UNSCALE,
}
_COUNTS = (
    *("rss_bytes", "rss_peak_bytes", "device_allocated_bytes", "device_reserved_bytes", "device_peak_allocated_bytes"),
    *("device_peak_reserved_bytes", "alloc_retries", "loader_queue", "loader_workers"),
)
"""-1 where unknown."""
_SCALARS = ("loss_scale", "grad_norm")
"""NaN where unknown."""


@dataclass(frozen=True)
class Context:
    """What records of one process refer to."""

    rank: int
    names: Sequence[str]
    offset_ns: int
    """Unix time minus the process's monotonic time."""
    group_sizes: dict[str, int]
    members: dict[str, tuple[int, ...]]
    """Global ranks by group, in the order of its own ranks."""
    backends: dict[str, str]

    def name(self, ids: npt.NDArray[Any], none: int = -1) -> pl.Series:
        """Texts by id; null for *none* and for ids whose text is lost."""
        known = np.asarray(ids, dtype=np.int64)
        valid = (known >= 0) & (known < len(self.names)) & (known != none)
        return pl.Series([*self.names, None], dtype=pl.String).gather(np.where(valid, known, len(self.names)))

    def wall(self, mono: npt.NDArray[Any]) -> pl.Series:
        """Unix ns; null where the time was never written."""
        times = mono.astype(np.int64)
        return pl.Series(times + self.offset_ns).set(pl.Series(times <= 0), None)


def tables_of(records: Records, context: Context) -> dict[str, pl.DataFrame]:
    """Tables of the records of one process (both of its rings), in any order."""
    records = records[np.argsort(records["enqueue_ns"], kind="stable")]
    found = {
        "phases": _phases(records, context),
        "collectives": _collectives(_of(records, Kind.COLLECTIVE), context),
        "copies": _copies(_of(records, Kind.COPY), context),
    }
    return {name: table for name, table in found.items() if not table.is_empty()}


def _of(records: Records, kind: Kind) -> Records:
    chosen: Records = records[records["kind"] == kind]
    return chosen


def _words(words: dict[int, str], numbers: npt.NDArray[Any]) -> pl.Series:
    """The word for each number; null where there is none."""
    last = max(words)
    by_number = pl.Series([words.get(number) for number in range(last + 2)], dtype=pl.String)
    return by_number.gather(np.minimum(numbers.astype(np.int64), last + 1))


def _end(records: Records) -> npt.NDArray[np.int64]:
    """end_ns where it is over; else 0 (it has not ended, or its end was being written)."""
    over = records["state"] >= State.DONE
    return np.where(over, records["end_ns"].astype(np.int64), 0)


# -- phases --------------------------------------------------------------------------------------------------------


def _phases(records: Records, context: Context) -> pl.DataFrame:
    """Phases, and what stops the training thread inside them: waits, pauses, sharded units, updates on the CPU."""
    kinds = (
        (_of(records, Kind.PHASE), _PHASES, "op"),
        (_waits(records), {int(Op.WAIT): WAIT}, "op"),
        (_of(records, Kind.PAUSE), _PAUSES, "op"),
        (_of(records, Kind.UNIT), _UNITS, "op"),
        (_of(records, Kind.COPY), _HOST_COPIES, "op"),
    )
    parts = [_spans(chosen, names, context) for chosen, names, _ in kinds]
    return pl.concat(parts).sort("start_ns", maintain_order=True)


def _waits(records: Records) -> Records:
    calls = _of(records, Kind.COLLECTIVE)
    waits: Records = calls[calls["op"] == Op.WAIT]
    return waits


def _spans(records: Records, names: dict[int, str], context: Context) -> pl.DataFrame:
    records = records[np.isin(records["op"], list(names))]
    table = pl.DataFrame(
        {
            "rank": np.full(records.size, context.rank, dtype=np.int32),
            "step": records["step"].astype(np.int64),
            "phase": _words(names, records["op"]),
            "tid": records["thread"].astype(np.int64),
            "start_ns": context.wall(records["start_ns"]),
            "end_ns": context.wall(_end(records)),
            "label": context.name(records["label"]),
            "micro_step": records["micro_step"].astype(np.int32),
            "inferred": (records["flags"] & Flag.INFERRED) != 0,
        }
    )
    return TABLES["phases"].conform(table.filter(pl.col("end_ns").is_null() | (pl.col("end_ns") >= pl.col("start_ns"))))


# -- collectives ---------------------------------------------------------------------------------------------------


def _collectives(records: Records, context: Context) -> pl.DataFrame:
    """Communication calls. One whose end nobody saw keeps its place in the order, but has no duration."""
    records = records[records["op"] != Op.WAIT]
    flags = records["flags"]
    late = ((flags & Flag.END_IS_WAIT) != 0) & ((flags & Flag.ASYNC) != 0)  # waited for long after it was over
    unseen = late | ((flags & (Flag.END_UNKNOWN | Flag.DEVICE_TIMED)) == Flag.END_UNKNOWN)
    end = np.where(unseen | (records["state"] == State.FAILED), 0, _end(records))
    group = context.name(records["group"])
    op = _words(_OPS, records["op"]).fill_null("unknown")
    backend = group.replace_strict(context.backends, default="gloo", return_dtype=pl.String).fill_null("gloo")
    on_device = pl.Series((flags & Flag.DEVICE_TIMED) != 0)
    table = pl.DataFrame(
        {
            "rank": np.full(records.size, context.rank, dtype=np.int32),
            "group": group.fill_null("unknown"),
            "op": op,
            "seq": pl.Series(records["seq"].astype(np.int64)).set(pl.Series(records["seq"] < 0), None),
            "dtype": context.name(records["dtype"], none=NO_DTYPE),
            "bytes_in": records["bytes_in"].astype(np.int64),
            "bytes_out": records["bytes_out"].astype(np.int64),
            "stream": np.full(records.size, -1, dtype=np.int64),
            "peer": _peers(records, context),
            "start_ns": context.wall(records["start_ns"]),
            "end_ns": context.wall(end),
            "enqueue_ns": context.wall(records["enqueue_ns"]),
            "external_id": np.full(records.size, -1, dtype=np.int64),
            "label": context.name(records["label"]),
            "phase": _words(_PHASES, records["phase"]).fill_null("none"),
            "asynchronous": (flags & Flag.ASYNC) != 0,
            "no_sync": (flags & Flag.NO_SYNC) != 0,
            "sampled": (flags & (Flag.SAMPLED | Flag.END_UNKNOWN)) != 0,
        }
    ).with_columns(
        pl.when(on_device).then(pl.lit("kernel")).otherwise(pl.lit("host")).alias("source"),
        group_size=pl.col("group").replace_strict(context.group_sizes, default=None, return_dtype=pl.Int32),
        name=pl.format("{}:{}", backend, op),
    )
    return TABLES["collectives"].conform(table)


def _peers(records: Records, context: Context) -> pl.Series:
    """Global ranks; rings number the ranks of a group as c10d does, from 0. Null where nobody says who is in it."""
    inside, groups = records["peer"].astype(np.int64), records["group"]
    found = np.full(records.size, -1, dtype=np.int32)
    for number in np.unique(groups[inside >= 0]):
        known = 0 <= number < len(context.names)
        members = np.array(context.members.get(context.names[number], ()) if known else (), dtype=np.int32)
        chosen = (groups == number) & (inside >= 0) & (inside < members.size)
        found[chosen] = members[inside[chosen]]
    return pl.Series(found).set(pl.Series(found < 0), None)


# -- copies --------------------------------------------------------------------------------------------------------


def _copies(records: Records, context: Context) -> pl.DataFrame:
    records = records[np.isin(records["op"], [int(Copy.H2D), int(Copy.D2H)]) & (_end(records) > 0)]
    table = pl.DataFrame(
        {
            "rank": np.full(records.size, context.rank, dtype=np.int32),
            "device": np.full(records.size, -1, dtype=np.int32),
            "stream": np.full(records.size, -1, dtype=np.int64),
            "direction": _words(_COPIES, records["op"]),
            "bytes": records["bytes_in"].astype(np.int64),
            "start_ns": context.wall(records["start_ns"]),
            "end_ns": context.wall(_end(records)),
            "correlation": np.full(records.size, -1, dtype=np.int64),
            "external_id": np.full(records.size, -1, dtype=np.int64),
        }
    )
    return TABLES["copies"].conform(table)


# -- steps ---------------------------------------------------------------------------------------------------------


def summaries(records: Summaries, rank: int, offset_ns: int) -> pl.DataFrame:
    """The table ``step_summaries`` of one process."""
    names = set(records.dtype.names or ())
    columns: dict[str, Any] = {
        name: records[name].astype(np.int64)
        for name in TABLES["step_summaries"].schema
        if name in names and name not in _SCALARS
    }
    columns |= {f"{name}_ns": records["phase_ns"][:, Phase[name.upper()]].astype(np.int64) for name in SUMMED_PHASES}
    columns |= {name: (records["flags"] & flag) != 0 for name, flag in _SUMMARY_FLAGS.items()}
    columns |= {name: pl.Series(records[name].astype(np.float64)).fill_nan(None) for name in _SCALARS}
    columns |= {"rank": np.full(records.size, rank, dtype=np.int32)}
    unknown = [pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in _COUNTS]
    shifted = [pl.col(name) + offset_ns for name in ("start_ns", "end_ns")]
    return TABLES["step_summaries"].conform(pl.DataFrame(columns).with_columns(*unknown, *shifted))


def memory_of(table: pl.DataFrame) -> pl.DataFrame:
    """The table ``memory`` from summaries: what each rank held at the end of each step, on host and device."""
    host = table.filter(pl.col("rss_bytes").is_not_null()).select(
        "rank",
        pl.lit("cpu").alias("device"),
        pl.col("end_ns").alias("ts_ns"),
        pl.col("rss_bytes").alias("allocated_bytes"),
    )
    device = table.filter(pl.col("device_allocated_bytes").is_not_null()).select(
        "rank",
        pl.lit("cuda").alias("device"),
        pl.col("end_ns").alias("ts_ns"),
        pl.col("device_allocated_bytes").alias("allocated_bytes"),
        pl.col("device_reserved_bytes").alias("reserved_bytes"),
    )
    return pl.concat([TABLES["memory"].conform(part) for part in (host, device)])
