"""Typed signals: what analysis derives from the facts, and the only thing a rule may look at.

A family that the evidence cannot give is absent (``None`` in :class:`Signals`), never zero. Inside a family an optional
scalar is ``None`` when unknown. "Steady" steps are all steps that are neither warm-up nor cut off; means and shares are
over steady steps unless said otherwise. Per-step figures are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import polars as pl

from ddiag.model.signals_incident import (
    INCIDENT_FAMILIES,
)
from ddiag.model.signals_recorded import RECORDED_FAMILIES, StoodStill
from ddiag.model.signals_sampled import SAMPLED_FAMILIES

Table = pl.DataFrame


@dataclass(frozen=True)
class JobFacts:
    """Who took part. Always present."""

    ranks: tuple[int, ...]
    world_size: int | None
    device_kind: str
    """cuda, rocm, cpu, mtia, xpu or other (the commonest over ranks)."""
    device_names: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    with_stack: bool = False
    """Python stacks were recorded: host times are inflated."""
    ranks_known: bool = True
    host_of: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StepBudget:
    """Where each step of each rank went; the parts sum to the step."""

    table: Table
    """rank, step, start_ns, end_ns, steady (bool), step_ms, and the exclusive parts
    compute_ms, comm_wait_ms (exposed, waiting for a late rank), comm_transfer_ms (exposed, moving data),
    copy_ms (exposed copies), input_ms (device idle, host in the data loader), sync_ms (device idle after a blocking
    sync), host_ms (device idle, host launching or in Python), idle_ms (device idle, unexplained);
    beside them overlapped_comm_ms (communication hidden under compute; not part of the sum)."""
    step_ms: float
    """Median steady step over ranks and steps."""
    source: str
    """annotation (ProfilerStep …), inferred (how is in ``note``) or window (the whole capture is one step)."""
    note: str
    n_steps: int
    """Distinct steady steps."""
    on_device: bool
    """True: compute is device kernels. False: host-only trace, compute is CPU operators."""
    excluded_steps: tuple[int, ...] = ()
    """Steps left out as warm-up or cut off."""
    warmup_ms: float | None = None
    """Median duration of the excluded warm-up steps."""

    def mean(self, column: str, rank: int | None = None) -> float:
        """Mean of *column* over steady steps (of one *rank* if given); NaN-free, 0.0 without rows."""
        frame = self.table.filter(pl.col("steady"))
        if rank is not None:
            frame = frame.filter(pl.col("rank") == rank)
        value = frame[column].mean() if frame.height else None
        return float(value) if isinstance(value, (int, float)) else 0.0

    def share(self, column: str, rank: int | None = None) -> float:
        """Mean of *column* as a share (0–1) of the mean step time."""
        step = self.mean("step_ms", rank)
        return self.mean(column, rank) / step if step > 0 else 0.0


@dataclass(frozen=True)
class InputWait:
    """Time the training thread spends getting the next batch."""

    per_rank: Table
    """rank, wait_ms (host time in the loader per step), stall_ms (of it, device idle), stall_share (of the step)."""
    wait_ms: float
    stall_ms: float
    stall_share: float
    single_process: bool | None
    """True: batches are made in the training process (num_workers=0); None: the loader's class was not seen."""
    spike_period: int | None = None
    """Every how many steps the wait spikes (= number of workers when workers cannot keep up)."""
    waits: Table | None = None
    """rank, step, start_ns, end_ns, wait_ms: each wait."""
    iterator: str = ""
    """Name of the loader span."""


@dataclass(frozen=True)
class HostLaunch:
    """How the host keeps the device fed."""

    launches_per_step: float
    median_kernel_us: float
    launch_gap_ms: float
    """Device idle per step because the next kernel was launched only after the previous had ended (host wait)."""
    kernel_wait_ms: float
    """Device idle per step although the next kernel was already queued (dependency, launch latency)."""
    launch_gap_share: float
    host_busy_share: float
    """Share of the step in which the training thread is inside operators or runtime calls."""
    graph_launches_per_step: float = 0.0
    long_gaps: Table | None = None
    """rank, step, start_ns, gap_ms, host_ms_in_calls, top_op: device gaps > 5 ms that are neither input nor sync."""
    blocking_launch_share: float | None = None
    """Share of kernel launches whose call ends after its kernel (near 1 with CUDA_LAUNCH_BLOCKING=1)."""


@dataclass(frozen=True)
class SyncPoints:
    """Blocking synchronisations that let the device run dry."""

    table: Table
    """rank, op (aten::item, cudaStreamSynchronize …), where (Python frame or ''), count_per_step, wait_ms (host blocked
    per step), stall_ms (device idle per step because of it)."""
    stall_ms: float
    """Device idle caused, per step, worst rank."""
    stall_share: float
    count_per_step: float


@dataclass(frozen=True)
class Collectives:
    """Communication, matched across ranks where several ranks are present."""

    table: Table
    """One row per rank and call in the steady window: rank, group, op, seq, step, bytes, dtype, group_size, start_ns,
    end_ns, dur_ms, wait_ms, transfer_ms (null unless matched over >= 2 ranks), exposed_ms, matched (bool), source;
    beside them call (same id on all ranks for one collective), comm (id of group and rank set), ranks_matched,
    exposed_wait_ms (waiting without compute beside it), enqueue_ns, stream, name, external_id."""
    summary: Table
    """group, op, bytes (median), group_size, count_per_step, dur_ms, wait_ms, transfer_ms, exposed_ms (per step),
    algbw_gbps, busbw_gbps (GB/s, from transfer time when matched, else null)."""
    comm_ms: float
    """Union of communication per step, mean over ranks."""
    exposed_ms: float
    blocking_ms: float
    """Exposed part during which nothing else ran and the next compute waited for it."""
    overlapped_ms: float
    exposed_share: float
    overlap_share: float
    """overlapped / comm, 0–1."""
    matched_ranks: int
    """Ranks over which calls could be matched; 1 = waiting and transfer cannot be told apart."""
    clock_error_us: float | None = None
    """Residual of the clock alignment; start skews below 3x this are noise."""
    timed_on_device: bool = True
    note: str = ""
    """Which calls or ranks could not be matched, and why."""
    unseen_ms: float = 0.0
    """Exposed time per step of calls some of whose members gave no evidence: part of it may be waiting for those."""
    stood_still: StoodStill | None = None

    @property
    def mostly_unseen(self) -> bool:
        """At least half of the exposed time cannot be judged, because members' evidence is missing."""
        return self.unseen_ms > 0 and self.unseen_ms >= 0.5 * self.exposed_ms


@dataclass(frozen=True)
class LateRanks:
    """Who arrives last at synchronising collectives, and what everybody else waits (algorithms D2)."""

    table: Table
    """rank, last_count, collectives, blame_ms (waiting caused, rank-ms over the window), blame_share (0–1 of all
    waiting), steps_last (share of steps in which it is the worst), p_value (binomial, against 1/n),
    input_ms, compute_ms, host_ms (this rank's mean per step minus the median of its peers),
    kernel_slowdown (median ratio of its kernel durations to the peers' for the same kernels; null if unknown),
    cause: compute, device, input, host or unknown."""
    wait_ms_per_step: float
    """Mean waiting per rank and step."""
    wait_share: float
    persistent_rank: int | None
    """The one rank that stands out (blame_share and p_value), else None."""
    rotating: bool
    """Waiting is large but no rank stands out: the late rank changes."""
    collectives: int
    groups: tuple[str, ...] = ()
    note: str = ""
    late_together: tuple[int, ...] = ()
    """Two or more ranks that cause most of the waiting together, the same in every step, none of them alone."""


@dataclass(frozen=True)
class GradBuckets:
    """Gradient reductions of data parallelism (DDP buckets)."""

    table: Table
    """rank-independent, in launch order: index, bytes, dur_ms, transfer_ms, exposed_ms (waiting for late ranks left out
    where it is known), start_offset_ms (from the start of backward), ready_after_ms; means over steady steps. Bytes and
    the byte figures below are 0 when the evidence has no sizes: advice by size is then impossible."""
    count_per_step: float
    reductions_per_optimizer_step: float
    total_bytes: int
    median_bytes: int
    largest_bytes: int
    tail_exposed_ms: float
    """Exposed time of the last reduction(s) after backward ended, per step."""
    exposed_ms: float
    alpha_us: float | None = None
    """Fitted latency per reduction (algorithms D11)."""
    beta_gbps: float | None = None
    """Fitted bandwidth, GB/s."""
    best_bytes: int | None = None
    """Bucket size the model recommends."""
    predicted_gain_ms: float | None = None
    accumulation: int = 1
    """Backward passes per optimizer step."""
    synced_backwards: int = 1
    """Of those, how many reduced gradients."""
    issued: str = "backward"
    """backward: by hooks while backward runs (can overlap); synchronous: each awaited there; after_backward: later."""


@dataclass(frozen=True)
class ShardUnits:
    """Parameter gathers and gradient scatters of sharded data parallelism (FSDP, ZeRO-3)."""

    table: Table
    """op, bytes, count_per_step, dur_ms, exposed_ms per step."""
    gathers_per_step: float
    median_gather_bytes: int
    largest_gather_bytes: int
    total_gather_bytes: int
    """Per step."""
    gather_exposed_ms: float
    scatter_exposed_ms: float
    prefetched_share: float | None
    """Share of gathers that start before the previous unit's compute has ended."""
    framework: str = ""
    """fsdp1, fsdp2, deepspeed or ''."""


@dataclass(frozen=True)
class Copies:
    """Copies between host and device."""

    table: Table
    """direction, pinned, count_per_step, bytes_per_step, ms_per_step, gbps (bytes / time), exposed_ms per step."""
    h2d_gbps: float | None
    """Over copies of 1 MiB and more; None without any."""
    d2h_gbps: float | None
    pageable_share: float | None
    """Share of H2D + D2H bytes that are pageable; None when the evidence does not say."""
    pageable_exposed_ms: float
    exposed_ms: float
    """Host<->device copies with nothing else running on the device, per step."""
    link_busy_share: float
    """Share of the step in which the host link is busy in its busier direction."""
    bytes_per_step: int
    offload: str
    """Why copies look like offloading: '' (they do not), optimizer, parameters, activations or unknown."""
    offload_exposed_ms: float = 0.0
    cpu_optimizer_ms: float = 0.0
    """Host time per step in a CPU optimizer (CPUAdam, foreach on CPU tensors) while the device idles."""
    per_rank: Table | None = None
    """rank, h2d_gbps, d2h_gbps over large copies (>= 1 MiB)."""


@dataclass(frozen=True)
class KernelMix:
    """What the compute kernels are."""

    table: Table
    """kernel_class (gemm, conv, attention, norm, softmax, elementwise, reduction, optimizer, embedding, copy,
    other, communication), ms_per_step, share (of kernel time), count_per_step, median_us."""
    top: Table
    """name, kernel_class, ms_per_step, share, count_per_step, median_us: the 30 costliest kernels."""
    compute_ms: float
    elementwise_share: float
    tiny_share: float
    """Share of kernels shorter than 10 µs; 0.0 on a host-only trace, which has none."""
    per_rank: Table | None = None
    """rank, compute_ms per step, and slowdown: median over kernels of (this rank's mean / median of ranks' means)."""
    fused_elementwise_share: float = 0.0
    """Part of elementwise_share that a compiler has fused already (Triton)."""
    on_device: bool = True
    """False: a host-only trace, and the rows are CPU operators with their own time."""


@dataclass(frozen=True)
class Precision:
    """Number formats of matrix multiplications and convolutions."""

    table: Table
    """precision (fp32, tf32, bf16, fp16, fp8, int8, fp64, unknown), ms_per_step, share (of matmul time), example."""
    matmul_ms: float
    fp32_share: float
    """Share of matmul time run in true fp32 (no tensor cores)."""
    unknown_share: float
    tensor_cores: bool | None
    """The device has them."""
    tf32: bool | None = None
    """fp32 matrices can run on them as TF32 (Ampere and later); False on V100 and T4, None where unknown."""
    bf16: bool | None = None
    """They take bfloat16."""


@dataclass(frozen=True)
class Attention:
    """How attention runs."""

    fused_ms: float
    unfused_ms: float
    unfused_share: float
    """Of the step."""
    evidence: str
    """Operator or kernel that shows it."""
    calls_per_step: float


@dataclass(frozen=True)
class OptimizerStep:
    """The parameter update."""

    name: str
    implementation: str
    """fused, foreach, for_loop, cpu or unknown."""
    ms_per_step: float
    """Device time, or host time on a host-only trace."""
    host_ms_per_step: float
    kernels_per_step: float
    share: float
    zero_grad_kernels_per_step: float = 0.0
    steps_per_optimizer_step: float = 1.0
    skipped_steps: int = 0
    """Steps whose update was skipped by the gradient scaler."""
    scaler_checks_per_step: float = 0.0
    starved_ms: float | None = None
    """Device idle per step for want of launches while the host was inside the optimizer; None without a device."""
    clipped_scaled_steps: int = 0
    """Steps in which gradients were clipped before the scaler had unscaled them (recordings only)."""


@dataclass(frozen=True)
class Recompute:
    """Activation checkpointing."""

    ms_per_step: float
    """Compute time of the repeated forward inside backward."""
    share: float
    detected_by: str
    memory_share: float | None = None
    """Peak allocated / capacity, where known: recompute is questionable when this is low."""


@dataclass(frozen=True)
class Memory:
    """Device memory; in a recording without a device, the host's (device 'cpu')."""

    per_rank: Table
    """rank, device, peak_allocated_bytes, peak_reserved_bytes, capacity_bytes (null if unknown)."""
    timeline: Table
    """rank, device, ts_ns, allocated_bytes, reserved_bytes (thinned)."""
    peak_share: float | None
    """max over ranks of reserved (else allocated) / capacity."""
    reserved_unused_share: float | None
    """(reserved - allocated) / reserved at the peak: fragmentation."""
    growth_bytes_per_step: float | None
    """Allocated at step ends, slope over steady steps; None with fewer than 4 steps."""
    growth_steps: int | None = None
    """Steps a recording's slope is over: the whole run after warm-up; None for a trace (its steady steps)."""


@dataclass(frozen=True)
class AllocatorCalls:
    """cudaMalloc / cudaFree inside steady steps: the caching allocator gives up and starts again."""

    mallocs_per_step: float
    frees_per_step: float
    ms_per_step: float
    worst_rank: int
    share: float


@dataclass(frozen=True)
class Links:
    """Achieved against expected bandwidth, per group."""

    table: Table
    """group, op, group_size, bytes, busbw_gbps, expected_gbps, efficiency (0–1), basis (how expected was found)."""
    worst_efficiency: float | None
    slow_groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class PythonOverhead:
    """Host-side habits that cost time, seen in operator and Python spans."""

    gc_ms_per_step: float
    gc_ranks: tuple[int, ...]
    checkpoint_ms: float
    """Longest save seen inside a step."""
    logging_ms_per_step: float
    compile_ms: float
    """Compilation inside steady steps; in a recording, of functions compiled again and again after warm-up."""
    anomaly_mode: bool
    find_unused_ms: float | None
    """Time spent by DDP searching for unused parameters, per step; None when that search was not seen."""
    dataloader_workers: int | None = None
    checkpoint_ms_per_step: float | None = None
    """Saving per step over a whole recorded run, worst rank; None for a trace, which cannot tell how often."""
    checkpoint_share: float | None = None
    """The same as a share of the run's steps."""
    checkpoints: int | None = None
    """Steps of a recorded run in which a checkpoint was written."""
    compile_steps: int | None = None
    """Steps after warm-up over which compilation was added up; None: the steady ones."""
    compiled_again: tuple[str, ...] = ()
    """What was compiled again and again in a recording, the dearest first: function (file:line)."""
    logging_ranks: tuple[int, ...] = ()
    """Ranks of a recording that log about as long as the one that logs longest."""


@dataclass(frozen=True)
class HostLoad:
    """How contended the hosts' CPUs were during the judged steps (recordings only)."""

    table: Table
    """host, cpus, runnable_per_cpu (threads that want to run), busy_share, waiting_share (of the time, somebody waited
    for a CPU), job_share (CPU time of the job's ranks and loaders), steal_share, throttled_share; 0–1, null unknown."""
    seconds: float
    cpu_ms: Mapping[int, float] = field(default_factory=dict)
    """CPU time per step of each rank's own process, where it was sampled."""


FAMILIES: tuple[type, ...] = (
    JobFacts,
    StepBudget,
    InputWait,
    HostLaunch,
    SyncPoints,
    Collectives,
    LateRanks,
    GradBuckets,
    ShardUnits,
    Copies,
    KernelMix,
    Precision,
    Attention,
    OptimizerStep,
    Recompute,
    Memory,
    AllocatorCalls,
    Links,
    PythonOverhead,
    HostLoad,
    *INCIDENT_FAMILIES,
    *RECORDED_FAMILIES,
    *SAMPLED_FAMILIES,
)
"""Every signal family, in the order in which they are derived."""

F = TypeVar("F")


@dataclass(frozen=True)
class Signals:
    """All signal families of a run, by type; absent families are simply not there."""

    families: Mapping[type, object] = field(default_factory=lambda: MappingProxyType({}))

    def get(self, family: type[F]) -> F | None:
        found = self.families.get(family)
        return found if isinstance(found, family) else None

    def has(self, family: type) -> bool:
        return family in self.families
