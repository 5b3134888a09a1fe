"""The caching allocator gives memory back and asks for it again inside steps.

## Meaning
PyTorch keeps freed memory for reuse. When no cached block fits (fragmentation) or `empty_cache()` is called, it returns
blocks with cudaFree and requests new ones with cudaMalloc; cudaFree waits for the whole device.

## Impact
Each such round blocks host and device for milliseconds to seconds. Ranks do it at different steps, so all wait for all.

## Diagnosis
cudaFree and cudaMalloc calls inside steady steps, or the allocator's own count of retries step by step; much reserved
but unused memory at the peak tells fragmentation. Calls during warm-up are normal.

## Mitigation
`expandable_segments:True`, fewer different shapes, no `empty_cache()` in the loop, a little more headroom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from ddiag.model.signals import AllocatorCalls, JobFacts, Memory, StepBudget
from ddiag.model.signals_sampled import AllocatorRetries
from ddiag.rulekit import (
    Abstain,
    Confidence,
    Cost,
    Culprits,
    Evidence,
    Finding,
    Rule,
    Severity,
    View,
    name_ranks,
    step_cost,
)
from ddiag.rulekit.quality import confidence_for, over_steps, severity_over_steps

RULE = Rule(
    id="DD602",
    root_cause="RC-28",
    needs=(JobFacts, StepBudget),
    optional=(AllocatorCalls, AllocatorRetries, Memory),
    capture="profile 5+ steps after warm-up with torch.profiler, activities CPU and CUDA, profile_memory=True; or "
    "ddiag run, which counts the allocator's retries",
    symptom="single steps are 2–5 times slower; out of memory although gigabytes are reserved but unallocated",
    evidence="cudaFree and cudaMalloc inside steady steps, the allocator's count of retries, or much reserved memory "
    "unused near capacity",
    applies=lambda signals: (facts := signals.get(JobFacts)) is None or facts.device_kind != "cpu",
    references=(
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
    ),
)


@dataclass(frozen=True)
class Limits:
    calls_share: float = 0.02
    """Allocator calls / step for a finding."""
    warning_share: float = 0.05
    """From here it is a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    calls_ms: float = 1.0
    """Below this the calls do not matter."""
    frees_per_step: float = 0.2
    """cudaFree calls per step: one in five steps; a warmed-up allocator makes none."""
    uncached_per_step: float = 200.0
    """cudaMalloc calls per step from which caching must be switched off altogether."""
    retried_share: float = 0.05
    """Steps with retries / steps after warm-up: a job that fits has none."""
    warning_retried_share: float = 0.2
    """From here it is a warning, also where its cost is not known."""
    retried_steps: int = 3
    """Fewer are single long batches."""
    peak_share: float = 0.90
    """Reserved / capacity from which unused reserve is a danger."""
    unused_share: float = 0.25
    """Reserved but unallocated / reserved at the peak that counts as fragmentation."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, memory = signals[JobFacts], signals[StepBudget], signals.get(Memory)
    calls, retries = signals.get(AllocatorCalls), signals.get(AllocatorRetries)
    if calls is None and retries is None:
        yield Abstain("neither calls to the device's allocator nor its retries were recorded", RULE.capture)
        return
    often = _often(retries, limits)
    if calls is not None and _churns(calls, budget, limits):
        yield _churn(facts, budget, calls, memory, limits)
    elif often is not None:
        yield _retried(facts, budget, often, memory, limits)
    elif memory is not None and _is_fragmented(memory, limits):
        yield _fragmentation(facts, memory, limits)


def _churns(calls: AllocatorCalls, budget: StepBudget, limits: Limits) -> bool:
    share = calls.ms_per_step / budget.step_ms if budget.step_ms > 0 else 0.0
    many = max(calls.frees_per_step, calls.mallocs_per_step) >= limits.frees_per_step
    return many and calls.ms_per_step >= limits.calls_ms and share >= limits.calls_share


def _often(retries: AllocatorRetries | None, limits: Limits) -> pl.DataFrame | None:
    """Ranks whose allocator retries again and again, the worst first."""
    if retries is None:
        return None
    share = retries.table.with_columns(share=pl.col("steps_with_retries") / pl.col("steps"))
    often = share.filter(
        (pl.col("share") >= limits.retried_share) & (pl.col("steps_with_retries") >= limits.retried_steps)
    )
    return None if often.is_empty() else often.sort("share", "rank", descending=[True, False])


def _churn(
    facts: JobFacts, budget: StepBudget, calls: AllocatorCalls, memory: Memory | None, limits: Limits
) -> Finding:
    share = calls.ms_per_step / budget.step_ms
    uncached = calls.mallocs_per_step >= limits.uncached_per_step
    api = "hip" if facts.device_kind == "rocm" else "cuda"
    what = "memory is freed and requested again inside steps"
    if uncached:
        what = "device memory is not cached"
    elif calls.frees_per_step < limits.frees_per_step:
        what = "the allocator's cache still grows inside steps"
    return Finding(
        title=f"{what}: {calls.frees_per_step:.3g} {api}Free and {calls.mallocs_per_step:.3g} {api}Malloc calls take "
        f"{calls.ms_per_step:.1f} ms per step on rank {calls.worst_rank}",
        severity=severity_over_steps(share, budget, warning=limits.warning_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts),
        culprits=Culprits(where="caching allocator"),
        evidence=(
            Evidence("allocator calls", round(calls.ms_per_step, 3), "ms/step", limits.calls_ms, "worst rank"),
            Evidence("allocator calls", round(share, 4), "of step", limits.calls_share, "time / median step"),
            Evidence(
                f"{api}Free", round(calls.frees_per_step, 2), "per step", limits.frees_per_step, over_steps(budget)
            ),
            Evidence(
                f"{api}Malloc", round(calls.mallocs_per_step, 2), "per step", limits.uncached_per_step, "worst rank"
            ),
            *_unused(memory, limits),
        ),
        fix=_fixes(facts, uncached=uncached),
        verify="torch.cuda.memory_stats()['num_alloc_retries'] stays constant over 100 steps; `ddiag analyze "
        f"NEW_TRACES` shows no {api}Free inside steady steps",
        cost=step_cost(calls.ms_per_step, budget, facts),
        why="a warmed-up allocator serves every request from its cache and makes no such calls",
        doubt="libraries that allocate past PyTorch (cuBLAS workspaces, NCCL, custom kernels) make such calls, too",
    )


def _retried(
    facts: JobFacts, budget: StepBudget, often: pl.DataFrame, memory: Memory | None, limits: Limits
) -> Finding:
    worst, ranks = often.row(0, named=True), tuple(sorted(often["rank"].to_list()))
    cost_ms = None if worst["extra_ms"] is None else worst["extra_ms"] * worst["share"]
    lost = cost_ms / budget.step_ms if cost_ms is not None and budget.step_ms > 0 else 0.0
    severity = severity_over_steps(lost, budget, warning=limits.warning_share, critical=limits.critical_share)
    if severity is Severity.INFO and worst["share"] >= limits.warning_retried_share:
        severity = Severity.WARNING
    some = len(ranks) < len(facts.ranks)
    return Finding(
        title=f"the allocator runs out in {worst['share']:.0%} of the steps on {name_ranks(ranks)}, gives its cache "
        "back and asks again",
        severity=severity,
        confidence=Confidence.HIGH,
        culprits=Culprits(ranks=ranks if some else (), where="caching allocator"),
        evidence=tuple(_of_retries(worst, memory, limits)),
        fix=_fixes(facts, uncached=False),
        verify="torch.cuda.memory_stats()['num_alloc_retries'] stays constant over 100 steps",
        cost=Cost() if cost_ms is None else step_cost(cost_ms, budget, facts),
        why="the allocator counts its retries itself; every one of them stops the device to free memory",
        doubt="" if cost_ms is not None else "nearly every step retries, so what one without would take is not known",
        victims=tuple(rank for rank in facts.ranks if rank not in ranks) if some else (),
    )


def _of_retries(worst: dict[str, Any], memory: Memory | None, limits: Limits) -> Iterator[Evidence]:
    source = f"rank {worst['rank']}, {worst['steps']} steps after warm-up"
    yield Evidence("steps with retries", round(worst["share"], 4), "of steps", limits.retried_share, source)
    yield Evidence("steps with retries", worst["steps_with_retries"], "", limits.retried_steps, source)
    yield Evidence("retries", worst["retries"], "", None, source)
    if worst["extra_ms"] is not None:
        yield Evidence("such a step takes longer by", round(worst["extra_ms"], 2), "ms", None, "difference of medians")
    if worst["inactive_split_share"] is not None:
        share = round(worst["inactive_split_share"], 4)
        yield Evidence("free, in blocks partly in use", share, "of reserved", None, "at step ends")
    if worst["ooms"]:
        yield Evidence("requests that failed", worst["ooms"], "", None, "out of memory, and the job went on")
    yield from _unused(memory, limits)


def _fragmentation(facts: JobFacts, memory: Memory, limits: Limits) -> Finding:
    unused = memory.reserved_unused_share or 0.0
    return Finding(
        title=f"fragmented memory: {unused:.0%} of what is reserved at the peak is unused, with "
        f"{memory.peak_share or 0.0:.0%} of the device taken",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where="caching allocator"),
        evidence=(
            Evidence(
                "peak reserved", round(memory.peak_share or 0.0, 4), "of capacity", limits.peak_share, "worst rank"
            ),
            *_unused(memory, limits),
        ),
        fix=_fixes(facts, uncached=False),
        verify="torch.cuda.memory_stats(): reserved_bytes.all.peak - allocated_bytes.all.peak shrinks, "
        "num_alloc_retries stays constant",
        cost=Cost(),
        why="the allocator holds blocks that no request fits, and the device has nothing left to give",
        doubt="a cache left behind by an earlier, larger phase (evaluation) looks the same and is harmless",
    )


def _is_fragmented(memory: Memory, limits: Limits) -> bool:
    return (
        memory.peak_share is not None
        and memory.reserved_unused_share is not None
        and memory.peak_share >= limits.peak_share
        and memory.reserved_unused_share >= limits.unused_share
    )


def _unused(memory: Memory | None, limits: Limits) -> tuple[Evidence, ...]:
    if memory is None or memory.reserved_unused_share is None:
        return ()
    value = round(memory.reserved_unused_share, 4)
    return (Evidence("reserved but unused", value, "of reserved", limits.unused_share, "at the peak"),)


def _fixes(facts: JobFacts, *, uncached: bool) -> tuple[str, ...]:
    steps = [
        # Expandable segments need CUDA's virtual memory calls; most ROCm builds ignore the option with a warning.
        "PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8,max_split_size_mb:512 (named PYTORCH_ALLOC_CONF from "
        "2.10 on)"
        if facts.device_kind == "rocm"
        else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (named PYTORCH_ALLOC_CONF from 2.10 on); leave "
        "max_split_size_mb unset with it",
        "remove torch.cuda.empty_cache() from the loop (DeepSpeed reports 'pytorch allocator cache flushes' when "
        "memory is tight: lower stage3_max_live_parameters)",
        "fewer different shapes: pad to a few lengths, drop_last=True; a slightly smaller micro-batch for headroom",
    ]
    if uncached:
        steps.insert(
            0, "switch caching on again: unset PYTORCH_NO_CUDA_MEMORY_CACHING (and PYTORCH_NO_HIP_MEMORY_CACHING)"
        )
    return tuple(steps)
