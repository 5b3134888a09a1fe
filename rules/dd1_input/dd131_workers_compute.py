"""The loader's workers compute all the time and do not keep up: too few workers, or too dear a transform.

## Meaning
The queue is empty whenever a batch is asked for, and the workers have or want a CPU all the time: decoding, tokenising
or augmenting a batch takes more CPU time than there is.

## Impact
Training runs at the speed of the transform.

## Diagnosis
With idle CPUs on the host, more workers make use of them. Without, only a cheaper transform (or more CPUs) helps. When
workers want CPUs that they do not get although some are idle, the job is confined to a few of them.

## Mitigation
More workers while CPUs are idle; otherwise do the work beforehand, or on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLoad, InputWait, JobFacts, StepBudget
from ddiag.model.signals_recorded import LoaderWorkers
from ddiag.rulekit import Abstain, Evidence, Finding, Rule, View
from ddiag.rulekit.loader_state import Doing, Starved, StarvedLimits, Story, applies, late_workers, starved

RULE = Rule(
    id="DD131",
    root_cause="RC-43",
    needs=(JobFacts, StepBudget, InputWait, LoaderWorkers),
    optional=(HostLoad,),
    capture="ddiag run with a loader that has workers (torch 2.6 and later name them), ten seconds of steady steps",
    symptom="each step waits for data, the loader's workers show 100 % in `top`",
    evidence="an empty queue, workers on a CPU or waiting for one, idle CPUs of the host",
    applies=applies,
)


@dataclass(frozen=True)
class Limits(StarvedLimits):
    """And what tells too few workers from too few CPUs."""

    confined: float = 0.6
    """CPUs that a worker gets of those it wants, below which it is kept from them."""
    idle_cpus: float = 1.0
    """Idle CPUs of a host from which there is room for another worker."""


THROTTLED = 0.1
"""Part of the time in which a CPU quota holds the job back, from which idle CPUs of the host are out of its reach."""
MORE = "DataLoader(num_workers={needed}): as many would keep up, and {idle:.0f} CPUs of the host are idle"
CHEAPER = (
    "make the batch cheaper: tokenise, decode and resize beforehand; fewer augmentations; batched instead of single "
    "samples; decode and augment on the device (NVIDIA DALI, torchvision v2)"
)
THREADS = (
    "one thread per worker: OMP_NUM_THREADS=1, cv2.setNumThreads(0), torch.set_num_threads(1) in worker_init_fn, so "
    "that workers do not fight for cores"
)
CROWDED = "fewer workers and threads than CPUs, and nobody else's work on the host (DD209)"
CONFINED = (
    "let the job have the idle CPUs: `taskset -pc PID` and the container's limit (cpu.max, nr_throttled); Slurm "
    "--cpus-per-task, torchrun --numa-binding with as many cores as threads and workers"
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = starved(signals, limits, Doing.COMPUTING)
    if found is not None:
        yield late_workers(signals, limits, found, _story(found, signals, limits))


def _story(found: Starved, signals: View, limits: Limits) -> Story:
    """Too few workers, too dear a transform, or too few of the host's CPUs."""
    workers = int(found.middle("workers"))
    needed = _needed(workers, found, signals[StepBudget])
    idle, throttled = _room(found, signals.get(HostLoad))
    more = [Evidence("workers needed", needed, "per rank", None, "workers x step / (step - stall)")]
    doubt, got = "", found.middle("cpu_share")
    fix: tuple[str, ...] = (CHEAPER, THREADS)
    if idle is None:
        what, fix = "compute all the time", (f"num_workers up to {needed} while CPUs are idle", *fix)
        doubt = "how many CPUs of the host were idle is not known"
    elif throttled or got < limits.confined:
        free = idle >= limits.idle_cpus
        what = f"want a CPU all the time and get {got:.0%} of one{', while others are idle' if free else ''}"
        fix = (CONFINED, *fix) if free else (THREADS, CROWDED, CHEAPER)
    elif idle >= max(limits.idle_cpus, (needed - workers) * _ranks_on_a_host(found)):
        what = f"compute all the time, and there are too few ({workers} per rank; {needed} would keep up)"
        fix = (MORE.format(needed=needed, idle=idle), *fix)
    else:
        what = "compute all the time, and no CPUs are left for enough of them: the transform is too dear"
        fix = (*fix, f"more CPUs per rank: {needed} workers would keep up")
    if idle is not None:
        more.append(Evidence("idle CPUs", round(idle, 1), "", limits.idle_cpus, "on the host that has the fewest"))
    why = "no batch is ready when one is asked for, and the workers do nothing but compute"
    return Story(what, fix, why, doubt, more=tuple(more))


def _needed(workers: int, found: Starved, budget: StepBudget) -> int:
    """Workers that deliver a batch per step without a stall."""
    return math.ceil(workers * budget.step_ms / max(budget.step_ms - found.stall_ms, 0.01 * budget.step_ms))


def _room(found: Starved, load: HostLoad | None) -> tuple[float | None, bool]:
    """Idle CPUs of the starving ranks' host that has the fewest (None: unknown), and whether a quota holds it."""
    if load is None:
        return None, False
    hosts = {row["host"] for row in found.rows}
    rows = [row for row in load.table.iter_rows(named=True) if row["host"] in hosts or load.table.height == 1]
    idle = [row["cpus"] * (1.0 - row["busy_share"]) for row in rows if row["busy_share"] is not None]
    return min(idle, default=None), any((row["throttled_share"] or 0.0) >= THROTTLED for row in rows)


def _ranks_on_a_host(found: Starved) -> int:
    hosts = [row["host"] for row in found.rows]
    return max(hosts.count(host) for host in hosts)
