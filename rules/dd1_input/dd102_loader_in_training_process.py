"""Batches are made in the training process itself, between the steps (num_workers=0).

## Meaning
The loader has no worker processes: reading, decoding and collating happen on the thread that should launch kernels.

## Impact
Loading and training never overlap, so each step costs the sum of both.

## Diagnosis
The loader's span is a `_SingleProcessDataLoaderIter` (PyTorch's default: `num_workers=0`) and the device is idle during
it. A single-process loader that costs nothing (an in-memory data set) is no fault and is not reported.

## Mitigation
Give the loader worker processes. Objects the workers inherit must be picklable; on Linux they are forked, so keep CUDA
calls out of the data set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median_low

from ddiag.model.signals import HostLoad, InputWait, JobFacts, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps

RULE = Rule(
    id="DD102",
    root_cause="RC-43",
    needs=(JobFacts, StepBudget, InputWait),
    optional=(HostLoad,),
    capture="profile 5+ steps with torch.profiler (CPU and CUDA) around the whole loop, the loader's next() included",
    symptom="each step begins with an idle device; one CPU core per rank is busy, the others sleep",
    evidence="loader spans of _SingleProcessDataLoaderIter with an idle device",
    references=("https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading",),
)


USUAL_WORKERS = 8
"""To begin with where there are CPUs enough, or nobody knows how many there are."""


@dataclass(frozen=True)
class Limits:
    stall_share: float = 0.05
    """Stall / step for a warning; the same as DD101, which sees the stall without its reason."""
    critical_share: float = 0.25
    """From here the job pays for a quarter of its devices in vain."""
    stall_ms: float = 1.0
    """Below this a stall is the price of calling next() at all."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, wait = signals[JobFacts], signals[StepBudget], signals[InputWait]
    stall_ms = median_low(wait.per_rank["stall_ms"].to_list())
    floor = max(limits.stall_ms, limits.stall_share * budget.step_ms)
    share = stall_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if wait.single_process is not True or stall_ms < floor:
        return
    workers = _workers(facts, signals.get(HostLoad))
    idles = "the device idles" if budget.on_device else "training waits"
    yield Finding(
        title=f"batches are made in the training process (num_workers=0): {idles} {stall_ms:.1f} ms per "
        f"step ({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.stall_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(where=wait.iterator or None),
        evidence=(
            Evidence("worker processes", 0, "", None, f"iterator {wait.iterator or '_SingleProcessDataLoaderIter'}"),
            Evidence(
                "input stall", round(stall_ms, 3), "ms/step", round(floor, 3), f"{over_steps(budget)}, median rank"
            ),
            Evidence("input stall", round(share, 4), "of step", limits.stall_share, "stall / median step"),
            Evidence("time in the loader", round(wait.wait_ms, 3), "ms/step", None, "training thread, mean over ranks"),
        ),
        fix=(
            f"DataLoader(num_workers={workers}, persistent_workers=True, prefetch_factor=4, pin_memory=True); as a "
            "start, num_workers = CPU cores per rank minus 1, then lower it while the stall stays away",
            f"Hugging Face Trainer: dataloader_num_workers={workers} (default 0), dataloader_persistent_workers=True; "
            "Lightning takes the DataLoader's own setting",
            "if workers cannot be used (the data set is not picklable): prepare the next batch in a thread while the "
            "step runs",
        ),
        verify="`ddiag analyze NEW_TRACES`: the loader is a _MultiProcessingDataLoaderIter and the input stall is "
        f"below {limits.stall_share:.0%} of the step",
        cost=step_cost(stall_ms, budget, facts),
        why=f"the loader is the single-process iterator, and {idles} inside it",
        doubt=doubts(facts, "with few CPU cores per rank, workers help only as far as there are cores"),
    )


def _workers(facts: JobFacts, load: HostLoad | None) -> int:
    """CPUs per rank less the one that trains, on the host that has the fewest: more workers would take them from it."""
    if load is None:
        return USUAL_WORKERS
    ranks = math.ceil(len(facts.ranks) / load.table.height)
    fewest = min(int(cpus) for cpus in load.table["cpus"].to_list()) // ranks
    return min(max(fewest - 1, 1), USUAL_WORKERS)
