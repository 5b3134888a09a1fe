"""Named jobs with one planted fault each, and what a correct diagnosis must say about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tools.synth.job import MIB, Job, Late


@dataclass(frozen=True)
class Scenario:
    """A job and the truth about it."""

    doc: str
    job: Job
    rules: tuple[str, ...] = ()
    """Rule ids, any of which may come first; empty = healthy, nothing at warning or above."""
    ranks: tuple[int, ...] = ()
    """Culprit ranks; empty = the job as a whole."""
    undecidable: bool = False
    """The evidence that would settle it is missing: whatever is said would be a guess."""


_BIG_LAYER = 120 * MIB
"""With blocks this big and kernels at 0.6, communication is as long as backward: how it is organised matters."""

_HEALTHY = {
    "healthy": Scenario("nothing is wrong", Job()),
    "healthy_logging": Scenario("the loss is read every second step, which costs next to nothing", Job(log_every=2)),
    "healthy_clocks": Scenario("nothing is wrong; hosts' clocks differ by milliseconds", Job(clock_offset_ms=5.0)),
    "healthy_fsdp": Scenario("sharded training with prefetching", Job(strategy="fsdp")),
    "healthy_tp_dp": Scenario("tensor parallelism in pairs, data parallelism across them", Job(strategy="tp_dp")),
    "healthy_accumulation": Scenario(
        "four micro-steps, gradients reduced in the last", Job(accumulation=4, steps=3, warmup_steps=2)
    ),
    "healthy_barrier": Scenario("a barrier after backward, which costs nothing there", Job(barrier=True)),
    "healthy_shifted_windows": Scenario("profilers started one step apart", Job(window_shift_steps=1)),
    "healthy_missing_ranks": Scenario(
        "traces of two of eight ranks only", Job(ranks=8, missing_ranks=(2, 3, 4, 5, 6, 7))
    ),
}
_FAULTY = {
    "input_bound_single_process": Scenario(
        "batches are made in the training process", Job(workers=0, batch_ms=110), ("DD102", "DD101")
    ),
    "input_bound_few_workers": Scenario(
        "two workers cannot keep up", Job(workers=2, batch_ms=220, steps=8), ("DD103", "DD101")
    ),
    "launch_bound": Scenario(
        "kernels are shorter than their launches", Job(compute_scale=0.02, layer_bytes=MIB // 2, batch_ms=8), ("DD201",)
    ),
    "sync_each_parameter": Scenario(
        "the gradient norm is read back parameter by parameter",
        Job(items_per_step=600, steps=3, warmup_steps=2),
        ("DD202",),
    ),
    "late_compute": Scenario("rank 2 has more work", Job(late=Late("compute", 18)), ("DD501",), ranks=(2,)),
    "late_device": Scenario(
        "rank 2 does the same work more slowly", Job(late=Late("device", 16)), ("DD505", "DD501"), ranks=(2,)
    ),
    "late_input": Scenario("rank 2 waits for its loader", Job(late=Late("input", 90)), ("DD502",), ranks=(2,)),
    "late_host": Scenario(
        "rank 2's host is too slow to keep its device fed", Job(late=Late("host", 25)), ("DD503",), ranks=(2,)
    ),
    "late_host_after_sync": Scenario(
        "rank 2 reads the loss back, then works on the host while its device is idle",
        Job(late=Late("host_after_sync", 25)),
        ("DD202", "DD503"),
        ranks=(2,),
    ),
    "late_compute_clocks": Scenario(
        "as late_compute, and clocks differ", Job(late=Late("compute", 18), clock_offset_ms=5.0), ("DD501",), ranks=(2,)
    ),
    "late_compute_tensor_parallel": Scenario(
        "as late_compute, in pairs that share layers",
        Job(late=Late("compute", 18), strategy="tp_dp"),
        ("DD501",),
        ranks=(2,),
    ),
    "late_compute_overlapped": Scenario(
        "rank 1 of 8 has more work, in pairs that share layers; its replicas' buckets wait beside backward",
        Job(ranks=8, late=Late("compute", 18, rank=1), strategy="tp_dp", steps=4, warmup_steps=3),
        ("DD501",),
        ranks=(1,),
    ),
    "late_device_sharded": Scenario(
        "as late_device, under FSDP", Job(late=Late("device", 16), strategy="fsdp"), ("DD505",), ranks=(2,)
    ),
    "late_device_old_traces": Scenario(
        "as late_device, in traces of torch 1.9 that do not describe collectives",
        Job(late=Late("device", 16), flavour="cuda_old"),
        ("DD505",),
        ranks=(2,),
    ),
    "late_input_rocm": Scenario(
        "as late_input, on AMD devices", Job(late=Late("input", 90), flavour="rocm"), ("DD502",), ranks=(2,)
    ),
    "late_input_gloo": Scenario(
        "as late_input, on CPU ranks",
        Job(late=Late("input", 90), flavour="cpu", layer_bytes=MIB),
        ("DD502",),
        ranks=(2,),
    ),
    "late_compute_shifted_windows": Scenario(
        "as late_compute, profilers started apart and clocks differ",
        Job(late=Late("compute", 18), window_shift_steps=1, clock_offset_ms=7),
        ("DD501",),
        ranks=(2,),
    ),
    "late_device_of_eight": Scenario(
        "rank 5 of 8 is slower", Job(ranks=8, late=Late("device", 16, rank=5)), ("DD505",), ranks=(5,)
    ),
    "late_devices_of_one_host": Scenario(
        "four of eight ranks are slower",
        Job(ranks=8, late=Late("device", 16, rank=4, also=(5, 6, 7))),
        ("DD507",),
        ranks=(4, 5, 6, 7),
    ),
    "rotating_late_rank": Scenario(
        "another rank has more work in each step", Job(late=Late("rotating", 22), steps=10), ("DD504",)
    ),
    "small_buckets": Scenario(
        "gradients travel in hundreds of small buckets",
        Job(bucket_bytes=MIB // 2, params_per_layer=80, latency_us=90, layer_bytes=40 * MIB, steps=3, warmup_steps=2),
        ("DD403",),
    ),
    "giant_bucket": Scenario(
        "all gradients travel in one bucket after backward",
        Job(bucket_bytes=1 << 40, layer_bytes=_BIG_LAYER, compute_scale=0.6),
        ("DD404",),
    ),
    "no_overlap": Scenario(
        "gradients are reduced only when backward is over",
        Job(overlap=False, layer_bytes=_BIG_LAYER, compute_scale=0.6),
        ("DD402",),
    ),
    "slow_link": Scenario("the group runs at a fortieth of what its links can do", Job(busbw_gbps=8.0), ("DD406",)),
    "tiny_messages": Scenario(
        "hundreds of one-number reductions",
        Job(tiny_reductions=400, latency_us=30, steps=3, warmup_steps=2),
        ("DD405",),
    ),
    "pageable_copies": Scenario(
        "large batches are copied from pageable memory",
        Job(pinned=False, batch_bytes=96 * MIB, log_every=1),
        ("DD1003",),
    ),
    "offloaded_optimizer": Scenario("the optimizer runs on the host", Job(optimizer="cpu"), ("DD1001", "DD1002")),
    "fsdp_small_units": Scenario(
        "FSDP wraps single linear layers",
        Job(strategy="fsdp", units_per_layer=24, latency_us=130, steps=3, warmup_steps=2),
        ("DD407",),
    ),
    "fsdp_one_unit": Scenario(
        "FSDP wraps the model as one unit",
        Job(strategy="fsdp", units_per_layer=0, layer_bytes=_BIG_LAYER, compute_scale=0.6),
        ("DD408",),
    ),
    "fsdp_no_prefetch": Scenario(
        "FSDP gathers each unit when it is needed",
        Job(strategy="fsdp", prefetch=False, layer_bytes=_BIG_LAYER, compute_scale=0.6),
        ("DD409",),
    ),
    "unfused_optimizer": Scenario(
        "the optimizer loops over parameters",
        Job(optimizer="loop", params_per_layer=40, steps=3, warmup_steps=2),
        ("DD301",),
    ),
    "fp32_matmul": Scenario("matrix products run in float32", Job(precision="fp32", steps=4), ("DD1101",)),
    "unfused_attention": Scenario("attention materialises its score matrix", Job(attention_fused=False), ("DD302",)),
    "recompute": Scenario(
        "every block is computed again in backward although memory is free",
        Job(recompute=True, memory_share=0.3),
        ("DD303",),
    ),
    "allocator_churn": Scenario(
        "the caching allocator gives memory back and asks for it again", Job(allocator_retries=6), ("DD602",)
    ),
    "launch_blocking": Scenario("CUDA_LAUNCH_BLOCKING=1 was left on", Job(launch_blocking=True), ("DD804",)),
    "memory_near_capacity": Scenario("the device is nearly full", Job(memory_share=0.985), ("DD601",)),
    "no_sync_missing": Scenario(
        "every micro-step reduces gradients",
        Job(accumulation=4, no_sync=False, steps=3, warmup_steps=2, layer_bytes=600 * MIB, compute_scale=0.6),
        ("DD801",),
    ),
}
_UNDECIDABLE = {
    "culprit_without_trace": Scenario(
        "rank 2 has more work, and its trace is the one that is missing",
        Job(late=Late("compute", 18), missing_ranks=(2,)),
        undecidable=True,
    ),
    "victim_alone": Scenario(
        "rank 2 has more work; only rank 0 was profiled",
        Job(late=Late("compute", 18), missing_ranks=(1, 2, 3)),
        undecidable=True,
    ),
    "slow_link_seen_by_one": Scenario(
        "the link is slow; only rank 0 was profiled", Job(busbw_gbps=8.0, missing_ranks=(1, 2, 3)), undecidable=True
    ),
}
SCENARIOS: Mapping[str, Scenario] = MappingProxyType(_HEALTHY | _FAULTY | _UNDECIDABLE)
