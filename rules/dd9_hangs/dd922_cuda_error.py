"""A kernel of the program failed on the device; the watchdog only happened to notice.

## Meaning
CUDA errors are sticky and asynchronous: whoever asks the device next gets them, and under NCCL that is often the
watchdog thread. The collective it was polling has nothing to do with it.

## Impact
The process aborts, and the others time out.

## Diagnosis
The text after "terminated with exception:" is a CUDA error, or a Python exception of the same rank is; an Xid 13 or 31
with its pid is the same fault seen by the driver.

## Mitigation
Find the kernel: CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer on that rank; mostly an index out of range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Deaths, Events
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.death_finding import began_ns, culprits, evidence, victims, who

RULE = Rule(
    id="DD922",
    root_cause="RC-22",
    needs=(Deaths,),
    optional=(Events, JobFacts),
    capture="the log of the rank that prints the CUDA error first, with CUDA_LAUNCH_BLOCKING=1; dmesg -T of its node",
    symptom="NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered",
    evidence="the watchdog's exception is a CUDA error, no time-out; an Xid 13 or 31 at the same second",
    applies=lambda signals: (
        (deaths := signals.get(Deaths)) is not None and any(death.cause == "cuda_error" for death in deaths.first)
    ),
    explained_by=("DD907", "DD915", "DD934", "DD627", "DD630"),
    references=("https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html",),
)
_PROGRAM = (13, 31, 43, 45)


@dataclass(frozen=True)
class Limits:
    """A CUDA error is one; there is nothing to set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    deaths, events = signals[Deaths], signals.get(Events)
    first = [death for death in deaths.first if death.cause == "cuda_error"]
    if deaths.ordered and deaths.first[0].cause != "cuda_error" and deaths.first[0] not in first:
        return
    seen = [e for e in events.of("kernel.xid") if e.integer("code") in _PROGRAM] if events is not None else []
    guilty = culprits(first)
    sure = deaths.ordered or len(deaths.first) == len(first) == 1
    yield Finding(
        title=f"{who(first[0])}: {first[0].what.splitlines()[0]}"[:200],
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if sure and guilty.ranks else Confidence.MEDIUM,
        culprits=guilty,
        victims=victims(deaths, signals.get(JobFacts), guilty.ranks),
        evidence=(
            *evidence(first, deaths),
            *(Evidence("the driver at that time", e.text[:160], "", None, e.source) for e in seen[:2]),
        ),
        fix=(
            "CUDA_LAUNCH_BLOCKING=1 on that rank: the traceback then shows the call that fails",
            "compute-sanitizer --tool memcheck python …: names the kernel and the address",
            "check index and embedding ranges (vocabulary against tokenizer, labels against classes), and custom, "
            "Triton or compiled kernels",
        ),
        verify="`CUDA_LAUNCH_BLOCKING=1` and the same batch: no CUDA error; dmesg shows no new Xid",
        why="a CUDA error is raised by the program's own kernels; network and time-outs play no part",
        doubt="when the same board fails with other programs too, it is the board",
        state=State.CRASHED,
        began_ns=began_ns(first),
    )
