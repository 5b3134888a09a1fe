"""One rank still prepares data while the others wait at the first barrier.

## Meaning
Tokenising, downloading or building an index on rank 0 only, with a barrier (main_process_first) for the others, takes
longer than the timeout of the process group.

## Impact
The job is ended before its first step, exactly one timeout after the start.

## Diagnosis
Everybody but one rank waits in one of the first calls (a barrier, one element) or for the NCCL id of a root; the one
is in dataset code or shows its progress bar.

## Mitigation
Do the work before the job, or give that phase a timeout of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import SETUP_WORK, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD904",
    root_cause="RC-04",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="dies exactly 600 or 1800 s after the start, before step 0",
    evidence="the missing rank is in tokenisation, download or dataset code, at one of the first calls of the job",
    applies=stalls_for(SETUP_WORK),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} still prepares data; {waiting(stall)} for it in {place(stall)}",
        (
            "prepare the data once before the job (axolotl preprocess, LLaMA-Factory tokenized_path, "
            "datasets.save_to_disk)",
            "here a longer timeout helps: ddp_timeout (Trainer), "
            "InitProcessGroupKwargs(timeout=timedelta(hours=3)) (accelerate), "
            "init_process_group(timeout=...), DEEPSPEED_TIMEOUT (minutes)",
            "use a gloo group with a long timeout for the barrier of this phase",
        ),
        "step 0 begins; the time from start to step 0 is below the timeout",
    )
