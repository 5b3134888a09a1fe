"""What logs, dumps, tool outputs and configurations say: the records readers give, and their tables.

A reader yields :class:`Event`, :class:`Metric`, :class:`Setting`, :class:`NodeFact` and :class:`Stack` records; tables
hold them by column. ``rank`` is always the global rank; a rank inside a group stays in ``fields`` (``group_rank``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import polars as pl

from ddiag.model.columns import Column, Table

Value: TypeAlias = "int | float | str | bool | list[Value] | dict[str, Value] | None"
"""What JSON can hold."""

EPOCH, LOCAL, YEARLESS, BOOT, UNDATED = "epoch", "local", "yearless", "boot", ""
"""Clocks of a time stamp: Unix time; a date without a zone; no year and no zone; seconds since boot; none."""
YEARLESS_YEAR = 1972
"""The (leap) year as of which stamps without a year are kept until joining knows better."""


@dataclass(frozen=True)
class Event:
    """One thing that a line (or block of lines) says happened."""

    kind: str
    """``area.what``, e.g. ``c10d.watchdog_timeout``; every kind is declared in :mod:`ddiag.model.event_kinds`."""
    fields: Mapping[str, Value] = field(default_factory=dict)
    rank: int | None = None
    """Global rank that wrote it or that it is about."""
    host: str | None = None
    ts_ns: int | None = None
    """On ``clock``; readers give what is printed, joining brings all to Unix time."""
    clock: str = UNDATED
    text: str = ""
    """The line as printed, secrets removed, at most 2,000 characters."""
    source: str = ""
    """file:line."""

    def get(self, name: str) -> Value:
        return self.fields.get(name)

    def integer(self, name: str) -> int | None:
        found = self.fields.get(name)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def number(self, name: str) -> float | None:
        found = self.fields.get(name)
        return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    def word(self, name: str) -> str:
        """The field as text; empty when absent."""
        found = self.fields.get(name)
        return "" if found is None else str(found)


@dataclass(frozen=True)
class Metric:
    """One number of a series that a log prints again and again: step time, loss scale, throughput."""

    name: str
    """With its unit: ``step_ms``, ``ds.step_microstep_ms``, ``megatron.forward_backward_max_ms``, ``loss_scale``."""
    value: float
    step: int | None = None
    rank: int | None = None
    host: str | None = None
    ts_ns: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Setting:
    """One value of a configuration or environment."""

    kind: str
    """env, ds_config, accelerate, fsdp, trainer, megatron, nccl, package, module, limit, sysctl, mount, driver …; of a
    recording also env.unread (variables that nothing in the job reads), recorded, node and job."""
    key: str
    """Dotted path (``zero_optimization.reduce_bucket_size``) or variable name."""
    value: str
    """As printed; JSON for lists and objects; secrets are never here."""
    rank: int | None = None
    host: str | None = None
    source: str = ""


@dataclass(frozen=True)
class NodeFact:
    """One fact about a node or a device of it, as a tool printed it."""

    key: str
    """``gpu.pcie.width.current``, ``nic.state``, ``gpu.ecc.remapped.pending``, ``shm.size_bytes``: units in the key."""
    text: str
    number: float | None = None
    host: str | None = None
    device: str | None = None
    """``gpu3`` (nvidia-smi index), ``mlx5_0``, or a bus id ``0000:3b:00.0`` (lower case, 4-digit domain)."""
    ts_ns: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Stack:
    """The stack of one thread at one moment, innermost frame first."""

    frames: tuple[str, ...]
    """``function (file.py:123)``."""
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    thread: str = ""
    """Thread name or id; ``MainThread`` for the main one."""
    state: str = ""
    """active, idle, gil, or the process state letter of /proc (D, T, Z …)."""
    kind: str = "python"
    """python, native or kernel."""
    ts_ns: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Standing:
    """How far a rank came in a group, as somebody beside the rank itself says; a row of ``flight_status``."""

    group: str
    origin: str
    rank: int | None = None
    desc: str = ""
    ranks: tuple[int, ...] | None = None
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    host: str | None = None
    source: str = ""


Seen: TypeAlias = Event | Metric | Setting | NodeFact | Stack | Standing

_RANK = Column("rank", pl.Int32, "", "global rank, where known")
_HOST = Column("host", pl.String, "", "host, where known")
_SOURCE = Column("source", pl.String, "", "file:line")
_TS = Column("ts_ns", pl.Int64, "ns", "when")

LOG_EVENTS = Table(
    "log_events",
    "Recognised lines of logs, kernel messages and tools.",
    (
        _RANK,
        _HOST,
        _TS,
        Column("clock", pl.String, "", "what ts_ns counts from: epoch, local, yearless, boot, or empty"),
        Column("kind", pl.String, "", "what the line says, as area.word"),
        Column("text", pl.String, "", "the line"),
        Column("fields", pl.String, "", "what was taken from it, as JSON"),
        _SOURCE,
    ),
)
LOG_METRICS = Table(
    "log_metrics",
    "Numbers that a log prints again and again.",
    (
        _RANK,
        _HOST,
        _TS,
        Column("step", pl.Int64, "", "step or iteration it belongs to"),
        Column("name", pl.String, "", "name with unit"),
        Column("value", pl.Float64, "", "in the unit of the name"),
        _SOURCE,
    ),
)
CONFIG = Table(
    "config",
    "Settings found in the evidence.",
    (
        Column("key", pl.String, "", "name or dotted path"),
        Column("value", pl.String, "", "value"),
        _SOURCE,
        Column("kind", pl.String, "", "env, ds_config, accelerate, fsdp, package, recorded, node …"),
        _RANK,
        _HOST,
    ),
)
NODE_FACTS = Table(
    "node_facts",
    "What tools say of nodes and their devices.",
    (
        _HOST,
        Column("device", pl.String, "", "gpu3, mlx5_0 or a bus id; null for the node"),
        Column("key", pl.String, "", "name with unit"),
        Column("text", pl.String, "", "as printed"),
        Column("number", pl.Float64, "", "the same as a number, where it is one"),
        _TS,
        _SOURCE,
    ),
)
STACKS = Table(
    "stacks",
    "Stacks of threads.",
    (
        _RANK,
        _HOST,
        Column("pid", pl.Int64, "", "process"),
        Column("thread", pl.String, "", "thread"),
        Column("state", pl.String, "", "active, idle, gil, or the state letter of /proc"),
        Column("kind", pl.String, "", "python, native or kernel"),
        Column("frames", pl.List(pl.String), "", "innermost first: function (file:line)"),
        _TS,
        _SOURCE,
    ),
)
FLIGHT = Table(
    "flight",
    "Entries of Flight Recorder dumps, one row per rank and call; also unfinished calls of our own rings.",
    (
        _RANK,
        Column("group", pl.String, "", "key of the process group: name, made unambiguous by its members"),
        Column("call", pl.String, "", "coll or p2p: what seq counts; coalesced collectives are one call"),
        Column("op", pl.String, "", "all_reduce, all_gather, reduce_scatter, broadcast, send, recv …"),
        Column("seq", pl.Int64, "", "collective_seq_id, or p2p_seq_id for call = p2p"),
        Column("op_id", pl.Int64, "", "op_id within the group"),
        Column("peer", pl.Int32, "", "global rank of the other side of a send or recv"),
        Column("state", pl.String, "", "scheduled, started or completed"),
        Column("numel_in", pl.Int64, "elements", "input elements of this rank, summed over tensors"),
        Column("numel_out", pl.Int64, "elements", "output elements of this rank, summed over tensors"),
        Column("sizes", pl.String, "", "input and output shapes as JSON"),
        Column("dtype", pl.String, "", "element types, joined by +"),
        Column("created_ns", pl.Int64, "ns", "enqueued"),
        Column("started_ns", pl.Int64, "ns", "found started"),
        Column("completed_ns", pl.Int64, "ns", "found completed"),
        Column("timeout_ms", pl.Int64, "ms", "timeout of the call"),
        Column("frame", pl.String, "", "innermost frame of the user's code: function (file:line)"),
    ),
)
FLIGHT_STATUS = Table(
    "flight_status",
    "How far each rank came in each group, from dumps, rings, watchdog lines or RAS; one row per source of it.",
    (
        _RANK,
        Column("group", pl.String, "", "as in flight"),
        Column("desc", pl.String, "", "group description, e.g. default_pg"),
        Column("ranks", pl.List(pl.Int32), "", "members, where known"),
        Column("last_enqueued", pl.Int64, "", "sequence number; -1 none; null unknown"),
        Column("last_started", pl.Int64, "", "sequence number; -1 none; null unknown"),
        Column("last_completed", pl.Int64, "", "sequence number; -1 none; null unknown"),
        Column("oldest_kept", pl.Int64, "", "smallest one of which an entry was kept; null when all were"),
        Column("origin", pl.String, "", "flight, ring, watchdog, desync or ras"),
        _HOST,
        _SOURCE,
    ),
)

INCIDENT_TABLES = (FLIGHT, FLIGHT_STATUS, STACKS, LOG_EVENTS, LOG_METRICS, NODE_FACTS, CONFIG)
