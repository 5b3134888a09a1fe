"""The job hangs with a driver for which such hangs are known.

## Meaning
Some driver branches hang in the first collective on some boards: the same image runs elsewhere. Branches made for new
features (545, 555, 560, …) have more such reports than production branches (535, 550, 570).

## Impact
Every job on these nodes hangs at its first barrier, or at the second run after a reboot.

## Diagnosis
Everything connected, all ranks in the same early call with equal sizes, no ACS, no Xid, no network in between, and a
driver of a branch with such reports. Only another driver on the same node proves it.

## Mitigation
Move to a production branch; reset the GPUs between jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts, Stall
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import hosts_among, lines, name_hosts, shown
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD714",
    root_cause="RC-85",
    needs=(Events, NodeFacts),
    optional=(Placement, Stall),
    capture="nvidia-smi (driver and VBIOS), NCCL_DEBUG=INFO, and one run with another driver on the same node",
    symptom="the same image works on one cluster and hangs at the first barrier on another",
    evidence="all ranks stuck in the same early call, a driver branch with reports of such hangs, nothing else found",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and events.has("c10d.watchdog_timeout")
        and (facts := signals.get(NodeFacts)) is not None
        and bool(facts.of("gpu.driver_version"))
    ),
    explained_by=("DD907", "DD911", "DD934", "DD913", "DD915"),
)
_REPORTED = {
    545: "huggingface/accelerate#2837",
    555: "huggingface/accelerate#2942",
    560: "dmlc/xgboost#11242",
}
_FEATURE_BRANCHES = (530, 545, 555, 560, 565, 575)


@dataclass(frozen=True)
class Limits:
    early_seq: int = 5
    """A call up to this number counts as the first."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, placement, stall = signals[Events], signals.get(Placement), signals.get(Stall)
    timeouts = events.of("c10d.watchdog_timeout")
    same = {(e.get("seq"), e.word("op"), e.get("numel_in")) for e in timeouts}
    early = len(same) == 1 and 0 < (timeouts[0].integer("seq") or 0) <= limits.early_seq
    alone = len({e.rank for e in timeouts}) < 2 or (stall is not None and bool(stall.culprits))
    if not early or alone or events.has("node.acs", "kernel.xid", "kernel.iommu_fault", "nccl.completion_error"):
        return
    drivers = signals[NodeFacts].of("gpu.driver_version")
    suspect = [fact for fact in drivers if _branch(fact.text) in _FEATURE_BRANCHES]
    if not suspect:
        yield Abstain(
            f"all ranks hang in their first call; driver {drivers[0].text} is of no branch known for that",
            RULE.capture,
        )
        return
    branch = _branch(suspect[0].text)
    hosts = hosts_among([*suspect, *timeouts], placement)
    reported = _REPORTED.get(branch)
    yield Finding(
        title=f"all ranks hang in their first call with driver {suspect[0].text} on {name_hosts(hosts)}, "
        "a branch with reports of such hangs",
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM if reported else Confidence.LOW,
        culprits=Culprits(hosts=hosts, where=f"driver {suspect[0].text}"),
        evidence=(
            shown("driver", suspect[0]),
            *lines("stuck", timeouts, 2),
            *((Evidence("reported", reported),) if reported else ()),
        ),
        fix=(
            "move to the newest driver of a production branch (535, 550, 570 or later) and reboot",
            "until then reset the GPUs between jobs: nvidia-smi -r",
        ),
        verify="all_reduce_perf twice in a row on the node with the other driver",
        why="nobody is missing from the call, nothing else was reported, and the branch is known for it",
        doubt="only a run with another driver on the same node proves it; NCCL_P2P_DISABLE=1 tells the path apart",
        state=State.STALLED,
        began_ns=began(timeouts),
    )


def _branch(version: str) -> int:
    first = version.split(".", 1)[0]
    return int(first) if first.isdigit() else 0
