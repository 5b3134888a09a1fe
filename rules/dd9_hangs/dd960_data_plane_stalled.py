"""All ranks are in the same collective with the same arguments, and none leaves it.

## Meaning
Nobody is late and nothing differs: the data do not move. A link, a NIC, a switch, a GPU or NCCL itself stands still,
and counters of launched calls (RAS RUNNING OK) cannot say which.

## Impact
The job hangs until its timeout.

## Diagnosis
Every rank that was seen is in the call with the same number and size; no rank can be named from this.

## Mitigation
Bisect the transport.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import DATA_PLANE, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for

RULE = Rule(
    id="DD960",
    root_cause="RC-83",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="RAS shows RUNNING OK, but torch timed out",
    evidence="equal numbers and sizes on all ranks seen, all begun, none completed",
    applies=stalls_for(DATA_PLANE),
    explained_by=CAUSES,
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        f"every rank seen is in {place(stall)} and none leaves it: the data do not move",
        (
            "collect what would name the rank: ncclras -v twice ten seconds apart, NIC counters and nvidia-"
            "smi dmon on every node, dmesg",
            "bisect: NCCL_NVLS_ENABLE=0, NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1, NCCL_ALGO=Ring, one at a "
            "time; pairwise nccl-tests",
            "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 for the next time; upgrade NCCL",
        ),
        "all_reduce_perf -b 8 -e 1G -f 2 over all nodes passes",
    )
