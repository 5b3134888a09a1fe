"""The devices wait for the input pipeline.

## Meaning
The training thread asks its loader for the next batch and gets it late; meanwhile the device has nothing to do.

## Impact
Every step is longer by the stall. More or faster devices do not help: the job runs at the speed of the loader.

## Diagnosis
Time in the loader's `__next__` during which the device is idle, per rank and step. All ranks alike: the pipeline is too
slow for the job (CPU, storage, too few workers). One rank only: look at that host instead (DD502). A wait without a
stall is harmless: the device still had queued work.

## Mitigation
Make batches ahead of time and beside the training process: worker processes, prefetching, pinned memory; then make each
batch cheaper (decode, tokenise or resize offline, pack small files into shards, read from local NVMe).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import polars as pl

from ddiag.model.signals import InputWait, JobFacts, LateRanks, PythonOverhead, StepBudget
from ddiag.model.signals_recorded import LoaderWorkers
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, name_ranks, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps

RULE = Rule(
    id="DD101",
    root_cause="RC-43",
    needs=(JobFacts, StepBudget, InputWait),
    optional=(LateRanks, PythonOverhead, LoaderWorkers),
    capture="profile 5+ steps with torch.profiler (CPU and CUDA) around the whole loop, the loader's next() included",
    symptom="GPU utilisation saw-tooths between 0 and 100 %; a step is much longer than its forward and backward",
    evidence="time in the loader's __next__ while the device is idle, on most ranks alike",
    references=("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    explained_by=("DD130", "DD131", "DD132", "DD133"),
)


@dataclass(frozen=True)
class Limits:
    stall_share: float = 0.05
    """Stall / step for a warning: a well-fed job stays below 2 %."""
    critical_share: float = 0.25
    """From here the job pays for a quarter of its devices in vain."""
    stall_ms: float = 1.0
    """Below this a stall is the price of calling next() at all."""
    most_ranks: float = 0.5
    """Part of the ranks above which the pipeline is to blame rather than those ranks."""


READY = 0.2
"""Part of the wait that met an empty queue, up to which workers are not late, and more of them no help."""
_TF_DATA_FIXES = (
    "dataset.map(f, num_parallel_calls=tf.data.AUTOTUNE), and end the pipeline with .prefetch(tf.data.AUTOTUNE)",
    "read files in parallel: dataset.interleave(..., num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)",
    "take Python out of the pipeline (tf.py_function and from_generator run one at a time under the GIL); batch before "
    "a cheap map so that it works on whole batches; .cache() what does not change between epochs",
    "make the batch cheaper: decode and resize offline, pack small files into TFRecord shards, read from local NVMe; "
    "or spread the work with tf.data service",
)
IDLES_ANYWAY = "a device that idles for another reason at the same time would look the same"


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, wait = signals[JobFacts], signals[StepBudget], signals[InputWait]
    stalls = {row["rank"]: row["stall_ms"] for row in wait.per_rank.iter_rows(named=True)}
    shares = {row["rank"]: row["stall_share"] for row in wait.per_rank.iter_rows(named=True)}
    floor = max(limits.stall_ms, limits.stall_share * budget.step_ms)
    starved = sorted(rank for rank, stall in stalls.items() if stall >= floor)
    if not starved or _is_one_late_rank(starved, stalls, signals.get(LateRanks)):
        return
    stall_ms = median(stalls[rank] for rank in starved)
    share = median(shares[rank] for rank in starved)
    everybody = len(starved) > limits.most_ranks * len(stalls)
    who = name_ranks(starved)
    if everybody and len(stalls) > 1:
        who = "every rank" if len(starved) == len(stalls) else f"{len(starved)} of {len(stalls)} ranks"
    yield Finding(
        title=f"input pipeline stalls {who} for {stall_ms:.1f} ms per step ({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.stall_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(ranks=() if everybody else tuple(starved), where=wait.iterator or None),
        evidence=_evidence(wait, budget, starved, (stall_ms, share), limits),
        fix=_TF_DATA_FIXES if "tensorflow" in facts.frameworks else _fixes(wait, signals),
        verify="train 50 steps on one cached batch: the speed-up is what input costs; after the fix "
        f"`ddiag analyze NEW_TRACES` must show an input stall below {limits.stall_share:.0%} of the step",
        cost=step_cost(stall_ms, budget, facts, share=share),
        why=f"{'the device is idle' if budget.on_device else 'nothing is computed'} while the training thread is in "
        "the loader's __next__",
        doubt=doubts(facts, IDLES_ANYWAY if budget.on_device else ""),
    )


def _is_one_late_rank(starved: list[int], stalls: dict[int, float], late: LateRanks | None) -> bool:
    """The stall belongs to the one late rank, whose own rule names it."""
    if late is None or late.persistent_rank is None or starved != [late.persistent_rank] or len(stalls) < 2:
        return False
    row = late.table.filter(pl.col("rank") == late.persistent_rank)
    return row["cause"].to_list() == ["input"]


def _evidence(
    wait: InputWait, budget: StepBudget, starved: list[int], stall: tuple[float, float], limits: Limits
) -> tuple[Evidence, ...]:
    stall_ms, share = stall
    worst = wait.per_rank.sort("stall_ms").row(-1, named=True)
    rows = [
        Evidence(
            "input stall",
            round(stall_ms, 3),
            "ms/step",
            round(max(limits.stall_ms, limits.stall_share * budget.step_ms), 3),
            f"{'device idle' if budget.on_device else 'waiting'} inside the loader, {over_steps(budget)}, median of "
            f"{name_ranks(starved)}",
        ),
        Evidence("input stall", round(share, 4), "of step", limits.stall_share, "mean stall / mean step"),
        Evidence("time in the loader", round(wait.wait_ms, 3), "ms/step", None, "training thread, mean over ranks"),
        Evidence("step", round(budget.step_ms, 3), "ms", None, "median over ranks and steady steps"),
    ]
    if wait.per_rank.height > 1:
        source = f"rank {worst['rank']}"
        rows.append(Evidence("worst rank's stall", round(worst["stall_ms"], 3), "ms/step", None, source))
        rows.append(
            Evidence("ranks stalled", len(starved), f"of {wait.per_rank.height}", None, "stall above the limit")
        )
    if wait.iterator:
        rows.append(Evidence("loader", wait.iterator, "", None, "iterator on the training thread"))
    return tuple(rows)


def _fixes(wait: InputWait, signals: View) -> tuple[str, ...]:
    overhead, seen = signals.get(PythonOverhead), signals.get(LoaderWorkers)
    late = seen is None or any(empty is None or empty > READY for empty in seen.table["empty_share"])
    workers = overhead.dataloader_workers if overhead is not None else None
    if wait.single_process:
        first = "DataLoader(num_workers=N, persistent_workers=True) with N up to the CPU cores per rank; it is 0 now"
    elif workers is not None:
        first = f"raise DataLoader(num_workers=) above {workers}, up to the CPU cores per rank"
    else:
        first = "raise DataLoader(num_workers=), up to the CPU cores per rank"
    return (
        *((first,) if late or wait.single_process else ()),
        "DataLoader(prefetch_factor=4, persistent_workers=True, pin_memory=True) and batch.to(device, "
        "non_blocking=True)",
        "make the batch cheaper: tokenise, decode and resize offline; pack small files into shards (WebDataset, "
        "MosaicML Streaming); read from local NVMe; decode images on the GPU (NVIDIA DALI, torchvision.io)",
        "stop workers from fighting for cores: cv2.setNumThreads(0), OMP_NUM_THREADS=1, and check the container's CPU "
        "limit (cpu.stat nr_throttled)",
    )
