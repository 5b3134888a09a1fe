"""Tables that only ddiag's recorder fills: phases of the training threads, and a summary of every step."""

from __future__ import annotations

import polars as pl

from ddiag.model.columns import END, RANK, START, TID, Column, Table
from ddiag.schema import phases

SUMMED_PHASES = (
    *("input", "h2d", "forward", "backward", "optimizer", "clip", "checkpoint", "evaluation", "logging", "compile"),
    *("other", "zero_grad"),
)
"""Phases a step summary adds up, by the names of ``ddiag.schema.phases.Phase``; ``other`` is what no mark covers."""
COMPILED_AGAIN = phases.AGAIN
"""Begins the label of the phase ``compile`` of a function that was compiled before."""
_STEP_FLAGS = (
    ("skipped", "the optimizer's step was left out because of inf or nan"),
    ("evaluated", "evaluation ran in it"),
    ("saved", "a checkpoint was written in it"),
    ("logged", "metrics were logged in it"),
    ("compiled", "something was compiled in it"),
    ("profiled", "torch.profiler ran in it: its times are not typical"),
    ("clipped_scaled", "gradients were clipped before they were unscaled"),
)

PHASES = Table(
    "phases",
    "What the training threads did, as the recorder marked it; intervals of one thread nest properly.",
    (
        RANK,
        Column("step", pl.Int64, "", "step in which it began"),
        Column("phase", pl.Categorical, "", "input, h2d, forward, backward, optimizer, clip, checkpoint, …"),
        TID,
        START,
        Column("end_ns", pl.Int64, "ns", "when it ended; null when it had not when the recording was read or cut off"),
        Column("label", pl.String, "", "what exactly: the call, the unit, the bucket, the function that is compiled"),
        Column("micro_step", pl.Int32, "", "backward passes of the step before it"),
        Column("inferred", pl.Boolean, "", "not marked by a call of its own, but the time between two marks"),
    ),
)
STEP_SUMMARIES = Table(
    "step_summaries",
    "What the recorder added up for every finished step of the run, also of those whose details are gone.",
    (
        RANK,
        Column("step", pl.Int64, "", "0, 1, … in the order in which they ended on this rank"),
        START,
        END,
        Column("micro_steps", pl.Int32, "", "backward passes"),
        *(Column(name, pl.Boolean, "", meaning) for name, meaning in _STEP_FLAGS),
        *(
            Column(f"{name}_ns", pl.Int64, "ns", f"training thread in {name} and in no phase nested in it")
            for name in SUMMED_PHASES
        ),
        Column("comm_count", pl.Int64, "", "communication calls"),
        Column("comm_bytes", pl.Int64, "bytes", "given to them"),
        Column("comm_wait_ns", pl.Int64, "ns", "training thread waited for communication; part of the phases"),
        Column("rss_bytes", pl.Int64, "bytes", "resident set at the end"),
        Column("rss_peak_bytes", pl.Int64, "bytes", "highest resident set seen"),
        Column("device_allocated_bytes", pl.Int64, "bytes", "highest allocation sampled"),
        Column("device_reserved_bytes", pl.Int64, "bytes", "reserved at the end"),
        Column("device_peak_allocated_bytes", pl.Int64, "bytes", "the allocator's own peak so far"),
        Column("device_peak_reserved_bytes", pl.Int64, "bytes", "the allocator's own peak so far"),
        Column("alloc_retries", pl.Int64, "", "the allocator gave its cache back and tried again"),
        Column("gc_ns", pl.Int64, "ns", "garbage collection"),
        Column("gc_count", pl.Int64, "", "garbage collections"),
        Column("loss_scale", pl.Float64, "", "of the gradient scaler"),
        Column("grad_norm", pl.Float64, "", "as the training computed it"),
        Column("loader_queue", pl.Int32, "", "batches ready when the last one was asked for"),
        Column("loader_workers", pl.Int32, "", "worker processes of that loader; 0: in the training process"),
        Column("overhead_ns", pl.Int64, "ns", "the recorder's own time (estimated)"),
    ),
)
EXITS = Table(
    "exits",
    "How the training processes of a recorded job ended; those that run on, or left no trace of their end, have nulls.",
    (
        RANK,
        Column("host", pl.String, "", "where it ran"),
        Column("pid", pl.Int64, "", "process id there"),
        Column("end_ns", pl.Int64, "ns", "when it was seen to end"),
        Column("exit_code", pl.Int32, "", "what it returned; null when a signal killed it, or when nobody saw"),
        Column("signal", pl.Int32, "", "number of the signal that killed it; null when it returned, or nobody saw"),
        Column("closed", pl.Boolean, "", "its recording was closed: the interpreter ended, well or by an exception"),
        Column("last_ns", pl.Int64, "ns", "the last thing it recorded"),
        Column("exception", pl.String, "", "type of the exception that nobody caught"),
        Column("message", pl.String, "", "its first line, secrets removed"),
        Column("where", pl.String, "", "file:line in function that raised it, innermost of the user's own"),
    ),
)
DEVICES = Table(
    "devices",
    "Devices of the hosts as the driver describes them; what it tells over time is in counters (device0.sm_mhz …).",
    (
        Column("host", pl.String, "", "where it is"),
        Column("device", pl.Int32, "", "index, as in nvidia-smi"),
        Column("name", pl.String, "", "product"),
        Column("bus_id", pl.String, "", "0000:3b:00.0"),
        Column("ranks", pl.List(pl.Int32), "", "whose processes were seen on it; empty when none could be told"),
        Column("memory_bytes", pl.Int64, "bytes", "its memory"),
        Column("numa_node", pl.Int32, "", "NUMA node of the host it is attached to"),
        Column("max_pcie_gen", pl.Int32, "", "best generation of its link to the host"),
        Column("max_pcie_width", pl.Int32, "lanes", "most lanes of its link to the host"),
        Column("max_sm_mhz", pl.Int32, "MHz", "highest clock of its multiprocessors"),
        Column("power_limit_w", pl.Float64, "W", "enforced power limit"),
    ),
)
PINNED = Table(
    "pinned_memory",
    "Memory that changes slowly: torch's pools of page-locked host and of device memory, told every ten seconds of "
    "training on a device.",
    (
        RANK,
        Column("ts_ns", pl.Int64, "ns", "when"),
        Column("step", pl.Int64, "", "the last step that had ended by then"),
        Column("pinned_bytes", pl.Int64, "bytes", "in the page-locked pool"),
        Column("reserved_bytes", pl.Int64, "bytes", "reserved by the device's caching allocator"),
        Column("inactive_split_bytes", pl.Int64, "bytes", "of it in free parts of blocks that are partly in use"),
        Column("ooms", pl.Int64, "", "requests of the process that failed for want of memory so far"),
    ),
)
DDP_UNUSED = Table(
    "ddp_unused",
    "What DDP's search for unused parameters found (find_unused_parameters=True), told when it changes.",
    (
        RANK,
        Column("module", pl.Int32, "", "number of the DDP module in its process"),
        Column("looks", pl.Int64, "", "iterations looked at so far"),
        Column("unused_bytes", pl.Int64, "bytes", "parameters without gradient in that iteration; 0: all were used"),
    ),
)
RECORDED_TABLES = (EXITS, DEVICES, PINNED, DDP_UNUSED)
"""Beside phases and step summaries."""
