"""One node differs from the others: other GPUs, power limit, clocks, driver, ECC or MIG.

## Meaning
A pool grew over time, a power limit was left behind, ECC was switched off on one node, MIG is on.

## Impact
A synchronous job runs at the pace of its slowest member from the first step on.

## Diagnosis
nvidia-smi of all nodes side by side. A GPU that becomes slower during the job throttles instead.

## Mitigation
Make the pool uniform, or choose nodes by type; set limits and modes when a job starts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddiag.model.incident import NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.devices import Device, blame, file_of, gpus
from ddiag.rulekit.proof import name_hosts, shown

_KEYS = (
    "gpu.name", "gpu.power_limit_w", "gpu.clock.sm_max_mhz", "gpu.mig.mode", "gpu.ecc.mode", "gpu.driver_version",
)  # fmt: skip
"""What must be alike, the most telling first."""

RULE = Rule(
    id="DD713",
    root_cause="RC-73",
    needs=(NodeFacts,),
    optional=(Placement,),
    capture="nvidia-smi --query-gpu=name,driver_version,power.limit,clocks.max.sm,ecc.mode.current,mig.mode.current "
    "--format=csv on all nodes",
    symptom="the job is slower from the first step since new nodes joined",
    evidence="one node with another product, driver, power limit, maximum clock, ECC or MIG mode",
    applies=lambda signals: (facts := signals.get(NodeFacts)) is not None and bool(facts.of(*_KEYS)),
)
_WORDS = {
    "gpu.name": "another GPU",
    "gpu.power_limit_w": "another power limit",
    "gpu.clock.sm_max_mhz": "another maximum clock",
    "gpu.mig.mode": "another MIG mode",
    "gpu.ecc.mode": "another ECC mode",
    "gpu.driver_version": "another driver",
}
_SLOWS = ("gpu.name", "gpu.power_limit_w", "gpu.clock.sm_max_mhz", "gpu.mig.mode")


@dataclass(frozen=True)
class Limits:
    hosts: int = 2
    """Nodes to compare."""
    same_share: float = 0.02
    """Numbers within this part of each other are alike."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, placement = signals[NodeFacts], signals.get(Placement)
    by_host = _by_host(facts)
    if len(by_host) >= limits.hosts:
        yield from _hosts(by_host, limits)
        return
    yield from _devices([device for device in gpus(facts, placement) if device.name.startswith("gpu")], placement)


def _by_host(facts: NodeFacts) -> Mapping[str, Mapping[str, NodeFact]]:
    """Host (or file, where none is named) -> key -> fact, for keys on which all devices of the host agree."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    first: dict[tuple[str, str], NodeFact] = {}
    for fact in facts.of(*_KEYS):
        owner = fact.host or file_of(fact)
        if owner:
            found[owner][fact.key].add(fact.text)
            first.setdefault((owner, fact.key), fact)
    return {
        host: {key: first[host, key] for key, texts in keys.items() if len(texts) == 1} for host, keys in found.items()
    }


def _hosts(by_host: Mapping[str, Mapping[str, NodeFact]], limits: Limits) -> Iterator[Finding]:
    for key in _KEYS:
        values = {host: facts[key] for host, facts in by_host.items() if key in facts}
        counts = Counter(_alike(fact, limits) for fact in values.values())
        if len(counts) < 2:
            continue
        usual, most = counts.most_common(1)[0]
        odd = tuple(host for host, fact in values.items() if _alike(fact, limits) != usual)
        clear = 2 * most > len(values)
        named = tuple(host for host in odd if values[host].host is not None) if clear else ()
        where = name_hosts(named) if named else f"the node of {odd[0]}" if clear else "nodes"
        slows = key in _SLOWS
        yield Finding(
            title=f"{_WORDS[key]} on {where}: {values[odd[0]].text} beside {usual}",
            severity=Severity.WARNING if slows else Severity.INFO,
            confidence=Confidence.HIGH if clear and len(values) > limits.hosts else Confidence.MEDIUM,
            culprits=Culprits(hosts=named),
            evidence=tuple(shown(f"{key} on {host}", fact, fact.text) for host, fact in list(values.items())[:6]),
            fix=(
                "run the job on nodes of one kind (Slurm --constraint, Kubernetes node selector)",
                "set what can be set at job start: nvidia-smi -pl, -e, -mig, the same driver everywhere",
            ),
            verify="the capture command on all nodes, `sort | uniq -c`: one line",
            why="all GPUs of a synchronous job wait for the slowest kind"
            if slows
            else "nodes of one pool should be alike",
            doubt="" if clear else "the nodes are split evenly: which kind is the intended one is not known",
        )
        return


def _alike(fact: NodeFact, limits: Limits) -> str:
    """The value, rounded so that limits of 699.9 and 700 W are one."""
    if fact.number is None or fact.key in ("gpu.name", "gpu.driver_version", "gpu.mig.mode", "gpu.ecc.mode"):
        return fact.text
    step = max(limits.same_share * fact.number, 1.0)
    return f"{round(fact.number / step) * step:.0f}"


def _devices(devices: list[Device], placement: Placement | None) -> Iterator[Finding]:
    """Within one node: one GPU whose power limit or mode is not that of the others."""
    for key in ("gpu.name", "gpu.power_limit_w", "gpu.mig.mode"):
        values = {id(device): device.text(key) for device in devices if device.text(key)}
        counts = Counter(values.values())
        if len(counts) != 2 or len(values) < 3:
            continue
        usual, most = counts.most_common(1)[0]
        odd = [device for device in devices if values.get(id(device), usual) != usual]
        if 2 * most <= len(values):
            continue
        named = blame(odd, placement)
        rows: tuple[Evidence, ...] = tuple(
            shown(f"{d.name} {key}", f) for d in odd[:4] if (f := d.last(key)) is not None
        )
        yield Finding(
            title=f"{', '.join(named.devices[:4])} ha{'s' if len(odd) == 1 else 've'} {_WORDS[key]}: "
            f"{odd[0].text(key)} beside {usual}",
            severity=Severity.WARNING,
            confidence=Confidence.HIGH,
            culprits=named,
            evidence=rows,
            fix=("nvidia-smi -pl WATTS, -mig 0 on all GPUs alike; make the node uniform",),
            verify="nvidia-smi --query-gpu=name,power.limit,mig.mode.current --format=csv: equal rows",
            why="all others of the node are alike",
        )
        return
