"""A training job in a few figures; every fault is a figure that differs from the healthy default."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class Late:
    """A rank that is later than its peers in every step."""

    kind: str
    """compute (more work), device (same work, slower), input (slower loader), host (slower processor),
    host_after_sync (host work between steps, behind an .item()) or rotating (more work, another rank each step)."""
    ms: float
    """About how much later, per step."""
    rank: int = 2
    also: tuple[int, ...] = ()
    """Further ranks that are late in the same way."""

    def hits(self, rank: int) -> bool:
        return rank == self.rank or rank in self.also


@dataclass(frozen=True)
class Job:
    """What the simulated ranks do; the defaults are a healthy DDP training of a small transformer on one H100 node."""

    ranks: int = 4
    steps: int = 6
    """Recorded steps."""
    warmup_steps: int = 4
    """Steps before the profiler starts, so that queues are in their steady state."""
    seed: int = 0
    flavour: str = "cuda"
    """cuda (torch 2.6 layout), cuda_old (torch 1.9), rocm or cpu (gloo)."""

    layers: int = 12
    layer_bytes: int = 28 * MIB
    """Gradient bytes of one block."""
    compute_scale: float = 1.0
    """Factor on kernel times; 0.02 makes kernels tiny."""
    precision: str = "bf16"
    attention_fused: bool = True
    recompute: bool = False

    strategy: str = "ddp"
    """ddp, fsdp or tp_dp (pairs of ranks share each layer)."""
    bucket_bytes: int = 25 * MIB
    overlap: bool = True
    """False: gradients are reduced only after backward."""
    busbw_gbps: float = 330.0
    latency_us: float = 22.0
    units_per_layer: int = 1
    """FSDP: how many wrapped units a block is split into; 0 = the whole model is one unit."""
    prefetch: bool = True
    accumulation: int = 1
    no_sync: bool = True
    """Under accumulation, reduce gradients only in the last micro-step."""
    barrier: bool = False
    tiny_reductions: int = 0
    """Reductions of one number after backward, per step."""

    workers: int = 4
    """0: batches are made in the training process."""
    batch_ms: float = 60.0
    """Time one worker needs for one batch."""
    batch_bytes: int = 4 * MIB
    pinned: bool = True
    host_link_gbps: float = 25.0

    host_op_us: float = 7.0
    """Host cost of an operator beside its launch."""
    log_every: int = 0
    """Every how many steps the loss is read with .item(); 0 = never."""
    items_per_step: int = 0
    """Further .item() calls, spread over the parameters, before the optimizer step."""
    optimizer: str = "fused"
    """fused, loop (one parameter at a time) or cpu (offloaded)."""
    params_per_layer: int = 12
    """Parameters of one block; all have gradients of similar size."""

    device_memory_bytes: int = 80 * 1024 * MIB
    memory_share: float = 0.55
    """Peak use of the device."""
    allocator_retries: int = 0
    """Per step: how often the caching allocator frees its cache and allocates anew."""
    launch_blocking: bool = False
    """Every launch waits for its kernel."""

    late: Late | None = None
    clock_offset_ms: float = 0.0
    """Rank r's clock is off by up to this much, either way."""
    missing_ranks: tuple[int, ...] = ()
    window_shift_steps: int = 0
    """Rank r's profiler starts r times so many steps later."""

    @property
    def on_device(self) -> bool:
        return self.flavour != "cpu"

    @property
    def gradient_dtype(self) -> str:
        return "BFloat16" if self.precision == "bf16" and self.on_device else "Float"
