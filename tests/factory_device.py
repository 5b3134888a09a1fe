"""Healthy signals about the device: gradients, copies, kernels, memory, links (see ``tests/factories.py``)."""

from __future__ import annotations

import polars as pl

from ddiag.model.signals import (
    AllocatorCalls,
    Attention,
    Copies,
    GradBuckets,
    KernelMix,
    Links,
    Memory,
    OptimizerStep,
    Precision,
    Recompute,
    ShardUnits,
)
from tests.factory_time import EPOCH_NS, Given, Shape, frame

MIB = 1 << 20
GIB = 1 << 30
H100_BYTES = 85_017_493_504


def grad_buckets(shape: Shape, given: Given) -> GradBuckets:
    """Shorthands: ``bytes`` of each bucket, ``count``."""
    size, count = given.pop("bytes", 25 * MIB), given.pop("count", 40)
    exposed = given.get("exposed_ms", shape.scaled(4.0))
    rows = [
        {
            "index": k,
            "bytes": size,
            "dur_ms": 1.3,
            "transfer_ms": 1.25,
            "exposed_ms": exposed if k == count - 1 else 0.0,
            "start_offset_ms": 2.0 + 2.4 * k,
            "ready_after_ms": 1.9 + 2.4 * k,
        }
        for k in range(count)
    ]
    default = {
        "table": pl.DataFrame(rows),
        "count_per_step": float(count),
        "reductions_per_optimizer_step": float(count),
        "total_bytes": size * count,
        "median_bytes": size,
        "largest_bytes": size,
        "tail_exposed_ms": exposed,
        "exposed_ms": exposed,
        "alpha_us": 30.0,
        "beta_gbps": 21.5,
        "best_bytes": size,
        "predicted_gain_ms": 0.0,
    }
    return GradBuckets(**{**default, **given})


def shard_units(shape: Shape, given: Given) -> ShardUnits:
    """Shorthands: ``bytes`` of each gathered unit, ``count``."""
    size, count = given.pop("bytes", 200 * MIB), given.pop("count", 32)
    gather, scatter = (
        given.get("gather_exposed_ms", shape.scaled(2.0)),
        given.get("scatter_exposed_ms", shape.scaled(1.0)),
    )
    rows = [
        {"op": "all_gather", "bytes": size, "count_per_step": 2.0 * count, "dur_ms": 60.0, "exposed_ms": gather},
        {"op": "reduce_scatter", "bytes": size, "count_per_step": float(count), "dur_ms": 30.0, "exposed_ms": scatter},
    ]
    default = {
        "table": pl.DataFrame(rows),
        "gathers_per_step": 2.0 * count,
        "median_gather_bytes": size,
        "largest_gather_bytes": size,
        "total_gather_bytes": 2 * size * count,
        "gather_exposed_ms": gather,
        "scatter_exposed_ms": scatter,
        "prefetched_share": 0.95,
        "framework": "fsdp2",
    }
    return ShardUnits(**{**default, **given})


def links(shape: Shape, given: Given) -> Links:
    efficiency = given.get("worst_efficiency", 0.85)
    row = {
        "group": "0",
        "op": "all_reduce",
        "group_size": len(shape.ranks),
        "bytes": 25 * MIB,
        "busbw_gbps": 43.2 * efficiency,
        "expected_gbps": 43.2,
        "efficiency": efficiency,
        "basis": "one 400 Gb/s adapter per device",
    }
    return Links(**{"table": pl.DataFrame([row]), "worst_efficiency": efficiency, **given})


def copies(shape: Shape, given: Given) -> Copies:
    """16 MiB of pinned input per step at 50 GB/s. Shorthands: ``pinned``, ``d2h_bytes``."""
    pinned, d2h_bytes = given.pop("pinned", True), given.pop("d2h_bytes", 4096)
    total, h2d, d2h = given.get("bytes_per_step", 16 * MIB), given.get("h2d_gbps", 50.0), given.get("d2h_gbps", 48.0)
    exposed = given.get("exposed_ms", shape.scaled(0.4))
    rows = [
        {"direction": direction, "pinned": pinned, "count_per_step": 4.0, "bytes_per_step": size}
        | {"ms_per_step": size / (gbps or 1.0) / 1e6, "gbps": gbps, "exposed_ms": lost}
        for direction, size, gbps, lost in (("h2d", total - d2h_bytes, h2d, exposed), ("d2h", d2h_bytes, d2h, 0.0))
    ]
    default = {
        "table": pl.DataFrame(rows),
        "h2d_gbps": h2d,
        "d2h_gbps": d2h,
        "pageable_share": 0.0 if pinned else 1.0,
        "pageable_exposed_ms": 0.0 if pinned else exposed,
        "exposed_ms": exposed,
        "link_busy_share": (total - d2h_bytes) / (h2d or 1.0) / 1e6 / shape.step_ms,
        "bytes_per_step": total,
        "offload": "",
        "per_rank": frame([{"rank": r, "h2d_gbps": h2d, "d2h_gbps": d2h} for r in shape.ranks]),
    }
    return Copies(**{**default, **given})


def kernel_mix(shape: Shape, given: Given) -> KernelMix:
    """Shorthands: ``slowdown={rank: factor}``, ``ms={kernel_class: ms_per_step}`` replacing the healthy mix."""
    slowdown = given.pop("slowdown", {})
    healthy = {"gemm": 130.0, "attention": 24.0, "norm": 6.0, "elementwise": 12.0, "optimizer": 6.0, "softmax": 2.0}
    mix: dict[str, float] = given.pop("ms", {name: shape.scaled(ms) for name, ms in healthy.items()})
    total = sum(mix.values())
    rows = [
        {"kernel_class": name, "ms_per_step": ms, "share": ms / total, "count_per_step": 300.0, "median_us": 40.0}
        for name, ms in mix.items()
    ]
    top = [{"name": f"{row['kernel_class']}_kernel", **row} for row in rows]
    factors = {r: slowdown.get(r, 1.0) for r in shape.ranks}
    per_rank = [{"rank": r, "compute_ms": total * k, "slowdown": k} for r, k in factors.items()]
    default = {
        "table": pl.DataFrame(rows),
        "top": pl.DataFrame(top),
        "compute_ms": total,
        "elementwise_share": mix.get("elementwise", 0.0) / total,
        "tiny_share": 0.1,
        "per_rank": frame(per_rank),
    }
    return KernelMix(**{**default, **given})


def precision(shape: Shape, given: Given) -> Precision:
    """Shorthand: ``ms={precision: ms_per_step}``."""
    mix: dict[str, float] = given.pop("ms", {"bf16": shape.scaled(128.0), "tf32": shape.scaled(2.0)})
    total = sum(mix.values())
    rows = [
        {"precision": name, "ms_per_step": ms, "share": ms / total, "example": f"gemm_{name}"}
        for name, ms in mix.items()
    ]
    default = {
        "table": pl.DataFrame(rows),
        "matmul_ms": total,
        "fp32_share": mix.get("fp32", 0.0) / total,
        "unknown_share": mix.get("unknown", 0.0) / total,
        "tensor_cores": True,
    }
    return Precision(**{**default, **given})


def attention(shape: Shape, given: Given) -> Attention:
    unfused = given.get("unfused_ms", 0.0)
    default = {
        "fused_ms": 24.0,
        "unfused_ms": unfused,
        "unfused_share": unfused / shape.step_ms,
        "evidence": "aten::_scaled_dot_product_flash_attention",
        "calls_per_step": 64.0,
    }
    return Attention(**{**default, **given})


def optimizer_step(shape: Shape, given: Given) -> OptimizerStep:
    cost = given.get("ms_per_step", shape.scaled(6.0))
    default = {
        "name": "AdamW",
        "implementation": "fused",
        "ms_per_step": cost,
        "host_ms_per_step": 3.0,
        "kernels_per_step": 24.0,
        "share": cost / shape.step_ms,
    }
    return OptimizerStep(**{**default, **given})


def recompute(shape: Shape, given: Given) -> Recompute:
    """Checkpointing that earns its cost: the memory it frees is in use."""
    cost = given.get("ms_per_step", shape.scaled(30.0))
    default = {
        "ms_per_step": cost,
        "share": cost / shape.step_ms,
        "detected_by": "CheckpointFunctionBackward",
        "memory_share": 0.82,
    }
    return Recompute(**{**default, **given})


def memory(shape: Shape, given: Given) -> Memory:
    """Shorthands: ``allocated={rank: share}``, ``reserved={rank: share}`` of capacity, ``capacity_bytes``."""
    allocated, reserved = given.pop("allocated", {}), given.pop("reserved", {})
    capacity = given.pop("capacity_bytes", H100_BYTES)
    size = capacity or H100_BYTES
    rows = [
        {
            "rank": r,
            "device": f"cuda:{r}",
            "peak_allocated_bytes": round(size * allocated.get(r, 0.78)),
            "peak_reserved_bytes": round(size * reserved.get(r, 0.82)),
            "capacity_bytes": capacity,
        }
        for r in shape.ranks
    ]
    table = frame(rows)
    step_ns = round(shape.step_ms * 1e6)
    timeline = [
        {"rank": row["rank"], "device": row["device"], "ts_ns": EPOCH_NS + s * step_ns + part * step_ns // 2}
        | {"allocated_bytes": row["peak_allocated_bytes"] // (2 - part), "reserved_bytes": row["peak_reserved_bytes"]}
        for row in rows
        for s in range(shape.steps)
        for part in (0, 1)
    ]
    peak = table.sort("peak_reserved_bytes").row(-1, named=True)
    default = {
        "per_rank": table,
        "timeline": frame(timeline),
        "peak_share": peak["peak_reserved_bytes"] / capacity if capacity else None,
        "reserved_unused_share": 1 - peak["peak_allocated_bytes"] / peak["peak_reserved_bytes"],
        "growth_bytes_per_step": 0.0,
    }
    return Memory(**{**default, **given})


def allocator_calls(shape: Shape, given: Given) -> AllocatorCalls:
    cost = given.get("ms_per_step", 0.0)
    default = {
        "mallocs_per_step": 0.0,
        "frees_per_step": 0.0,
        "ms_per_step": cost,
        "worst_rank": shape.ranks[0],
        "share": cost / shape.step_ms,
    }
    return AllocatorCalls(**{**default, **given})
