"""Device memory is nearly full: the next longer sequence may fail.

## Meaning
Tensors that are really in use fill the device almost to its capacity. (Memory that is reserved but unused is another
cause: DD602.)

## Impact
A longer sequence, an evaluation or a checkpoint ends in `CUDA out of memory` on one rank, and the others time out in
the next collective. Near the limit the allocator also begins to free and request memory in every step.

## Diagnosis
Peaks of allocated and reserved memory against capacity, per rank. About 1-3 GB beyond them go to the context and to
NCCL buffers, which the allocator does not count. A single full rank points to imbalance (pipeline stage, longest
sequence, expert), not to the model's size.

## Mitigation
Cut activations first (micro-batch, checkpointing, chunked loss), then model states (ZeRO or FSDP).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import polars as pl

from ddiag.model.signals import JobFacts, Memory
from ddiag.model.signals_sampled import AllocatorRetries
from ddiag.rulekit import (
    Abstain,
    Confidence,
    Culprits,
    Evidence,
    Finding,
    Rule,
    Severity,
    View,
    human_bytes,
    name_ranks,
)

RULE = Rule(
    id="DD601",
    root_cause="RC-06",
    needs=(JobFacts, Memory),
    optional=(AllocatorRetries,),
    capture="torch.profiler.profile(profile_memory=True), or log torch.cuda.max_memory_allocated() and "
    "max_memory_reserved() per rank",
    symptom="out of memory at a long sample, after evaluation or at the first optimizer step",
    evidence="peak reserved above 92 % of capacity with most of it allocated",
    applies=lambda signals: (facts := signals.get(JobFacts)) is None or facts.device_kind != "cpu",
    references=("https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",),
)


@dataclass(frozen=True)
class Limits:
    reserved_share: float = 0.92
    """Peak reserved / capacity: context and NCCL buffers take most of the rest."""
    allocated_share: float = 0.85
    """Peak allocated / capacity below which the reserve is fragmentation or cache, not need."""
    imbalance_share: float = 0.10
    """Peak of a full rank above the median of all ranks, / capacity, from which imbalance is named."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, memory = signals[JobFacts], signals[Memory]
    known = memory.per_rank.filter(pl.col("capacity_bytes") > 0)
    if known.is_empty():
        yield Abstain(
            "allocations were recorded, but not the capacity of the device",
            "record with a torch that writes deviceProperties (2.0+), or add nvidia-smi output",
        )
        return
    shares = known.with_columns(
        allocated=pl.col("peak_allocated_bytes") / pl.col("capacity_bytes"),
        reserved=pl.coalesce("peak_reserved_bytes", "peak_allocated_bytes") / pl.col("capacity_bytes"),
    )
    full = shares.filter(
        (pl.col("reserved") > limits.reserved_share) & (pl.col("allocated") > limits.allocated_share)
    ).sort("allocated")
    if full.is_empty():
        return
    ranks = tuple(sorted(full["rank"].unique().to_list()))
    worst = full.row(-1, named=True)
    excess = worst["allocated"] - median(shares["allocated"].to_list())
    uneven = excess >= limits.imbalance_share
    some = len(ranks) < shares["rank"].n_unique()
    yield Finding(
        title=f"device memory nearly full on {name_ranks(ranks)}: {human_bytes(worst['peak_allocated_bytes'])} of "
        f"{human_bytes(worst['capacity_bytes'])} in use at the peak ({worst['allocated']:.0%})",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if worst["peak_reserved_bytes"] is not None else Confidence.MEDIUM,
        culprits=Culprits(ranks=ranks if some else (), devices=(str(worst["device"]),) if len(ranks) == 1 else ()),
        evidence=(
            Evidence("peak reserved", round(worst["reserved"], 4), "of capacity", limits.reserved_share, _who(worst)),
            Evidence(
                "peak allocated", round(worst["allocated"], 4), "of capacity", limits.allocated_share, _who(worst)
            ),
            Evidence("peak allocated", worst["peak_allocated_bytes"], "bytes", None, "allocator events"),
            Evidence("capacity", worst["capacity_bytes"], "bytes", None, "device properties"),
            Evidence("above the median rank", round(excess, 4), "of capacity", limits.imbalance_share, "imbalance"),
            *_failed(signals.get(AllocatorRetries)),
            Evidence("full ranks", len(ranks), f"of {shares['rank'].n_unique()}", None, name_ranks(ranks)),
        ),
        fix=_fixes(uneven=uneven),
        verify="torch.cuda.max_memory_allocated() per rank stays below "
        f"{limits.allocated_share:.0%} of capacity for 1000 steps and one evaluation",
        why="what is in use at the peak, not what the allocator keeps in reserve, fills the device",
        doubt="the recorded steps may hold an unusually long batch; a capture of few steps may also miss a longer one",
        victims=tuple(rank for rank in facts.ranks if rank not in ranks) if some else (),
    )


def _failed(retries: AllocatorRetries | None) -> tuple[Evidence, ...]:
    """Requests that the allocator could not serve, and that the job survived (it caught the exception)."""
    ooms = retries.table["ooms"].drop_nulls().to_list() if retries is not None else []
    most = max(ooms, default=0)
    return (Evidence("requests that failed", most, "", None, "out of memory, and the job went on"),) if most else ()


def _who(row: dict[str, object]) -> str:
    return f"rank {row['rank']}, {row['device']}"


def _fixes(*, uneven: bool) -> tuple[str, ...]:
    steps = [
        "smaller micro-batch with more accumulation (same global batch), or a cap on sequence length",
        "activation checkpointing: model.gradient_checkpointing_enable(), torch.utils.checkpoint, "
        "torchtitan activation_checkpoint.mode=selective",
        "a loss that does not keep all logits: Liger fused_linear_cross_entropy, or cross-entropy in chunks",
        "shard model states further: ZeRO stage 1 → 2 → 3, or FSDP fully_shard with reshard_after_forward=True",
        "DDP: gradient_as_bucket_view=True saves one copy of the gradients",
    ]
    if uneven:
        steps.insert(0, "even out the ranks: pipeline stages by memory, batches by tokens, experts by capacity")
    return tuple(steps)
