"""One rank compiles while the others wait in their first collective.

## Meaning
torch.compile, Triton autotuning or building a C++ extension takes minutes on a rank whose cache is cold, or waits for
a stale lock file.

## Impact
The job times out in its first minutes, or at the first evaluation.

## Diagnosis
The stack or words of the missing rank are those of a compiler.

## Mitigation
Warm the caches before the first collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import COMPILE_SKEW, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD932",
    root_cause="RC-32",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="timeout in the first minutes; one node has a cold cache",
    evidence="the missing rank is in a compiler, or waits for its lock",
    applies=stalls_for(COMPILE_SKEW),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"{who(stall)} still compiles; {waiting(stall)} in {place(stall)}",
        (
            "compile before the first collective, then a barrier with a long timeout",
            "node-local TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR that are kept between runs; DS_BUILD_OPS=1",
            "remove stale locks: find ~/.cache/torch_extensions -name lock -delete",
            "here a longer timeout helps: init_process_group(timeout=timedelta(hours=1))",
        ),
        "the second run with warm caches passes the place; TORCH_LOGS=recompiles shows none on that rank alone",
    )
