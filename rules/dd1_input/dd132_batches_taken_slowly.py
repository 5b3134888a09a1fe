"""Batches lie ready, but the training process takes long to take one over.

## Meaning
Workers keep up: their queue is not empty when a batch is asked for. Yet each step spends its time in the loader's
`__next__`, in the training process itself: unpickling what the workers sent (lists, dicts and numpy arrays travel
through a pipe, tensors do not), or pinning it.

## Impact
More workers do not help; the training process does this alone, between the steps.

## Diagnosis
Batches ready at the ask, equally long waits in every step, and a training process that uses a CPU meanwhile.

## Mitigation
Let workers return few, large tensors: those are handed over in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLoad, InputWait, JobFacts, StepBudget
from ddiag.model.signals_recorded import LoaderWorkers
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.loader_state import Doing, StarvedLimits, Story, applies, late_workers, starved

RULE = Rule(
    id="DD132",
    root_cause="RC-43",
    needs=(JobFacts, StepBudget, InputWait, LoaderWorkers),
    optional=(HostLoad,),
    capture="ddiag run with a loader that has workers, ten seconds of steady steps",
    symptom="each step waits for data although the loader's workers are idle",
    evidence="batches ready when the training process asks, and a wait that is alike in all steps",
    applies=applies,
)


@dataclass(frozen=True)
class Limits(StarvedLimits):
    """The common limits of starving ranks."""


STORY = Story(
    what="have batches ready, but the training process takes long to take one over",
    where="handing batches from the workers to the training process",
    fix=(
        "collate in the worker into few large tensors (lists, dicts of numbers and numpy arrays are pickled, sent "
        "through a pipe and rebuilt in the training process)",
        "pin_memory=True only for what is copied to the device; leave texts and metadata out of the batch",
        "if it must stay: fetch the next batch in a thread while the step runs",
    ),
    why="late workers would leave the queue empty; here it is not, and each step waits alike",
    doubt="py-spy dump on the training process shows whether it is in pickle or in pin_memory",
)


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = starved(signals, limits, Doing.READY)
    if found is not None:
        yield late_workers(signals, limits, found, STORY)
