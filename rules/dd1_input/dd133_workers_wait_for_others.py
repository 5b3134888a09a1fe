"""The loader's workers sleep while training waits for them: they wait for something that is neither a CPU nor a file.

## Meaning
No batch is ready, and yet the workers neither compute nor wait in the kernel's file operations. What is left is a
service: an object store or a database over the network, a user-space file system, a lock, another process, a sleep.

## Impact
Training runs at the speed of what the workers wait for; more CPUs do not help.

## Diagnosis
The recorder sees how long each step waits and that no batch is ready; the sampler sees the state of the workers. What
they wait for, their stacks tell.

## Mitigation
As long as the other side takes more requests at once, more workers hide its latency; otherwise bring the data nearer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLoad, InputWait, JobFacts, StepBudget
from ddiag.model.signals_recorded import LoaderWorkers
from ddiag.rulekit import Abstain, Finding, Rule, View, name_ranks
from ddiag.rulekit.loader_state import Doing, StarvedLimits, Story, applies, late_workers, starved

RULE = Rule(
    id="DD133",
    root_cause="RC-43",
    needs=(JobFacts, StepBudget, InputWait, LoaderWorkers),
    optional=(HostLoad,),
    capture="ddiag run with a loader that has workers (torch 2.6 and later name them), ten seconds of steady steps",
    symptom="each step waits for data while the loader's workers use no CPU",
    evidence="an empty queue, workers that sleep",
    applies=applies,
)


@dataclass(frozen=True)
class Limits(StarvedLimits):
    """The common limits of starving ranks."""


STORY = Story(
    what="sleep, waiting neither for a CPU nor for a disk",
    fix=(
        "see what they wait for: `py-spy dump --pid PID` of a pt_data_worker, several times",
        "object store or remote file system: more workers and prefetch_factor hide latency; larger objects, range "
        "reads and a local cache save requests",
        "a lock, a server or a rate limit that all workers share: one connection per worker, opened in worker_init_fn",
    ),
    why="no batch is ready when one is asked for, and the workers use no CPU",
    doubt="the state says that they wait, not for what",
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = starved(signals, limits, Doing.SLEEPING)
    if found is not None:
        yield late_workers(signals, limits, found, STORY)
    untold = starved(signals, limits, Doing.UNKNOWN)
    if untold is not None:
        yield Abstain(
            f"input stalls {name_ranks(untold.ranks)}, but what the loader's workers did does not say why",
            "ddiag run for a minute of steady steps without gradient accumulation; `py-spy dump` of some workers",
        )
