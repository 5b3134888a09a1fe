"""The loader's workers wait for files: the storage does not deliver.

## Meaning
The worker processes are most of the time in the kernel's uninterruptible sleep, which is where a process waits for a
disk or for a file system over the network. They hardly compute.

## Impact
Training runs at the speed of the storage; a cheaper transform or more CPUs do not help.

## Diagnosis
The recorder sees how long each step waits and that no batch is ready; the sampler sees the state of the workers.

## Mitigation
Read less often and in larger pieces (shards instead of small files), from a local disk, and keep what is read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLoad, InputWait, JobFacts, StepBudget
from ddiag.model.signals_recorded import LoaderWorkers
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.loader_state import Doing, StarvedLimits, Story, applies, late_workers, starved

RULE = Rule(
    id="DD130",
    root_cause="RC-43",
    needs=(JobFacts, StepBudget, InputWait, LoaderWorkers),
    optional=(HostLoad,),
    capture="ddiag run with a loader that has workers (torch 2.6 and later name them), ten seconds of steady steps",
    symptom="each step waits for data, the loader's workers show state D in `ps`",
    evidence="an empty queue, workers in uninterruptible sleep, little CPU time",
    applies=applies,
)


@dataclass(frozen=True)
class Limits(StarvedLimits):
    """The common limits of starving ranks."""


STORY = Story(
    what="wait for files",
    where="storage",
    fix=(
        "fewer, larger reads: pack small files into shards (WebDataset, MosaicML Streaming, Arrow), read them in "
        "sequence, shuffle in memory",
        "copy the data to a local NVMe before training, or let the page cache hold it (where the second epoch is fast, "
        "it does)",
        "where the storage takes many requests at once (NVMe, Lustre, object stores): more workers",
    ),
    why="workers that are short of CPUs would have or want one; these wait inside file operations",
    doubt="a worker that swaps or loads its own code waits for the disk as well (major_faults in the samples)",
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = starved(signals, limits, Doing.BLOCKED)
    if found is not None:
        yield late_workers(signals, limits, found, STORY)
