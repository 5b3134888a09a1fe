"""The columnar facts of a run: one declaration per table, each column with its type, unit and meaning.

Facts come from ``ingest``; nothing here is derived. Times are nanoseconds on one clock per run (Unix epoch where the
evidence gives it). A null means "the evidence does not say"; a measured zero stays zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from ddiag.model.columns import CORRELATION, END, RANK, START, TID, Column, Name, Table
from ddiag.model.incident import INCIDENT_TABLES
from ddiag.model.recorded import PHASES, RECORDED_TABLES, STEP_SUMMARIES

__all__ = ["TABLES", "Column", "Name", "Table"]

RANKS = Table(
    "ranks",
    "One row per rank that gave evidence.",
    (
        RANK,
        Column("source", pl.String, "", "file or files it came from"),
        Column("host", pl.String, "", "host name, if the evidence has it"),
        Column("device_kind", pl.String, "", "cuda, rocm, cpu, mtia, xpu or other"),
        Column("device_name", pl.String, "", "e.g. NVIDIA H100 80GB HBM3"),
        Column("device_memory_bytes", pl.Int64, "bytes", "capacity of one device"),
        Column("backend", pl.String, "", "nccl, gloo, …"),
        Column("world_size", pl.Int32, "ranks", "as the evidence states it"),
        Column("main_tid", pl.Int64, "", "thread that drives training (most launches or operators)"),
        Column("rank_known", pl.Boolean, "", "false when the rank had to be made up"),
    ),
)
CAPTURES = Table(
    "captures",
    "One row per trace file: a profiler cycle of one rank.",
    (
        RANK,
        Column("capture", pl.Int32, "", "0, 1, … in time order within a rank"),
        Column("source", pl.String, "", "file"),
        START,
        END,
        Column("with_stack", pl.Boolean, "", "Python stacks were recorded (slows the host)"),
        Column("profile_memory", pl.Boolean, "", "allocations were recorded"),
        Column("truncated", pl.Boolean, "", "the file ends before its JSON does"),
        Column("framework", pl.String, "", "pytorch or tensorflow"),
        Column("versions", pl.String, "", "what the trace says of CUDA, ROCm, NCCL versions"),
    ),
)
OPS = Table(
    "ops",
    "Spans on host threads: operators, user annotations and Python functions.",
    (
        RANK,
        TID,
        Column("kind", pl.Categorical, "", "op, annotation, python or gpu_annotation"),
        Column("name", Name, "", "as recorded"),
        START,
        END,
        Column("external_id", pl.Int64, "", "links an operator to the runtime calls beneath it; -1 if none"),
        Column("sequence", pl.Int64, "", "autograd sequence number; -1 if none"),
        Column("fwd_tid", pl.Int64, "", "'Fwd thread id': > 0 on a backward operator; -1 if none"),
        Column("dims", pl.String, "", "input shapes as JSON, where recorded"),
        Column("dtypes", pl.String, "", "input types as JSON, where recorded"),
    ),
)
LAUNCHES = Table(
    "launches",
    "Runtime and driver calls (cudaLaunchKernel, hipMemcpyAsync, cudaStreamSynchronize …).",
    (
        RANK,
        TID,
        Column("kind", pl.Categorical, "", "launch, graph, copy, memset, sync, alloc, free, event or other"),
        Column("name", Name, "", "API name"),
        START,
        END,
        CORRELATION,
        Column("external_id", pl.Int64, "", "operator above it; -1 if none"),
    ),
)
KERNELS = Table(
    "kernels",
    "Device kernels (everything that runs on a stream but copies and memsets).",
    (
        RANK,
        Column("device", pl.Int32, "", "device index in the process; -1 unknown"),
        Column("stream", pl.Int64, "", "stream or queue; -1 unknown"),
        Column("kind", pl.Categorical, "", "compute or communication"),
        Column("name", Name, "", "kernel name as recorded"),
        START,
        END,
        CORRELATION,
        Column("external_id", pl.Int64, "", "operator that launched it; -1 if none"),
    ),
)
COPIES = Table(
    "copies",
    "Copies and memsets on a device.",
    (
        RANK,
        Column("device", pl.Int32, "", "device index; -1 unknown"),
        Column("stream", pl.Int64, "", "stream; -1 unknown"),
        Column("direction", pl.Categorical, "", "h2d, d2h, d2d, p2p, h2h, memset or unknown"),
        Column("pinned", pl.Boolean, "", "host side is page-locked; null when the evidence does not say"),
        Column("bytes", pl.Int64, "bytes", "amount"),
        START,
        END,
        CORRELATION,
        Column("external_id", pl.Int64, "", "operator that launched it; -1 if none"),
    ),
)
COLLECTIVES = Table(
    "collectives",
    "Communication calls of each rank: one row per rank and call, GPU kernel or host span.",
    (
        RANK,
        Column("group", pl.String, "", "process group name; 'unknown' if the evidence does not say"),
        Column("op", pl.String, "", "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send, recv, …"),
        Column("seq", pl.Int64, "", "k-th call of this group on this rank, in time order (from 0)"),
        Column("dtype", pl.String, "", "element type"),
        Column("bytes_in", pl.Int64, "bytes", "input tensors of this rank"),
        Column("bytes_out", pl.Int64, "bytes", "output tensors of this rank"),
        Column("group_size", pl.Int32, "ranks", "members of the group"),
        Column("stream", pl.Int64, "", "stream of the kernel; -1 for host spans"),
        Column("source", pl.String, "", "kernel (device time) or host (span of the CPU call)"),
        Column("name", pl.String, "", "kernel or span name"),
        Column(
            "peer", pl.Int32, "", "global rank of the other side of a send or recv; recordings: a broadcast's root, too"
        ),
        START,
        END,
        Column("enqueue_ns", pl.Int64, "ns", "when the host issued it"),
        Column("external_id", pl.Int64, "", "operator that issued it; -1 if none"),
        Column("label", pl.String, "", "what a recording says it is for: ddp0/bucket3, fsdp/layers.0, zero/…, pp/…"),
        Column("phase", pl.String, "", "what the training thread was doing when it was issued (recordings only)"),
        Column("asynchronous", pl.Boolean, "", "the call returned before it was over (recordings only)"),
        Column("no_sync", pl.Boolean, "", "issued inside no_sync() (recordings only)"),
        Column(
            "sampled",
            pl.Boolean,
            "",
            "seen, or seen to end, on some steps only (recordings only)",
        ),
    ),
)
GROUPS = Table(
    "groups",
    "Process groups.",
    (
        Column("group", pl.String, "", "name"),
        Column("desc", pl.String, "", "description, e.g. default_pg"),
        Column("size", pl.Int32, "ranks", "number of members"),
        Column("ranks", pl.List(pl.Int32), "", "members, where known"),
    ),
)
STEPS = Table(
    "steps",
    "Training steps the evidence marks itself (ProfilerStep#N, TensorFlow's step line).",
    (RANK, Column("step", pl.Int64, "", "step number"), START, END),
)
MEMORY = Table(
    "memory",
    "Allocator events.",
    (
        RANK,
        Column("device", pl.String, "", "cpu or cuda:N"),
        Column("ts_ns", pl.Int64, "ns", "when"),
        Column("bytes", pl.Int64, "bytes", "allocated (+) or freed (-)"),
        Column("allocated_bytes", pl.Int64, "bytes", "total allocated after it"),
        Column("reserved_bytes", pl.Int64, "bytes", "total reserved after it"),
    ),
)
COUNTERS = Table(
    "counters",
    "Sampled values.",
    (
        RANK,
        Column("name", pl.String, "", "counter"),
        Column("ts_ns", pl.Int64, "ns", "when"),
        Column("value", pl.Float64, "", "value in the counter's own unit"),
    ),
)
TABLES: Mapping[str, Table] = MappingProxyType(
    {
        table.name: table
        for table in (
            RANKS,
            CAPTURES,
            GROUPS,
            STEPS,
            PHASES,
            STEP_SUMMARIES,
            *RECORDED_TABLES,
            OPS,
            LAUNCHES,
            KERNELS,
            COPIES,
            COLLECTIVES,
            MEMORY,
            COUNTERS,
            *INCIDENT_TABLES,
        )
    }
)
"""Every table by name, in the order in which docs and ``ddiag query`` list them."""
