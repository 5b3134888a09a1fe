"""Another process uses a GPU of the job, or memory of a dead one was never given back.

## Meaning
nvidia-smi lists a process that is none of the job's ranks on the device, one that is gone (`[Not Found]`), or memory in
use that no process owns: a notebook, a previous attempt, a zombie.

## Impact
The rank there runs out of memory, or computes slowly and makes all others wait.

## Diagnosis
Processes by device. The same pid on several devices is a rank with extra contexts, which is another matter.

## Mitigation
End the process; reset the GPU when nothing shows; exclusive compute mode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import NodeFacts
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.devices import Device, blame, gpus
from ddiag.rulekit.proof import shown

RULE = Rule(
    id="DD710",
    root_cause="RC-45",
    needs=(NodeFacts,),
    optional=(Placement,),
    capture="nvidia-smi (the table with processes) of the node, from outside any container",
    symptom="out of memory although the job needs less, or one GPU is slow",
    evidence="a foreign or [Not Found] process on one device, memory in use that no process owns",
    applies=lambda signals: (
        (facts := signals.get(NodeFacts)) is not None
        and any(fact.number is not None for fact in facts.of("gpu.process"))
    ),
)
_GONE = ("[not found]", "[no data]", "[insufficient permissions]", "defunct")
_GRAPHICS = ("xorg", "gnome-shell", "/usr/lib/xorg/xorg", "nvidia-cuda-mps", "x", "gnome")


@dataclass(frozen=True)
class Limits:
    least_mib: float = 500.0
    """Memory of a process below this is a context only."""
    unowned_mib: float = 2000.0
    """Memory that no listed process owns from which somebody left it behind; driver and contexts need less."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    placement = signals.get(Placement)
    devices = gpus(signals[NodeFacts], placement)
    own = _programs(devices)
    for device in devices:
        foreign = _foreign(device, devices, own, limits)
        if foreign:
            yield _finding(device, foreign, placement)
        elif (used := device.last("gpu.memory_used_mib")) is not None and _unowned(device) > limits.unowned_mib:
            yield _left_behind(device, used, placement)


def _rows(device: Device, limits: Limits) -> list[NodeFact]:
    rows = {fact.text: fact for fact in device.facts.get("gpu.process", ())}
    return [f for f in rows.values() if (f.number or 0) >= limits.least_mib and not _name(f).startswith(_GRAPHICS)]


def _name(fact: NodeFact) -> str:
    return fact.text.partition(" ")[2].rsplit("/", 1)[-1].lower()


def _programs(devices: Sequence[Device]) -> str:
    """The program that runs on most devices: the job's own."""
    seen: dict[str, set[tuple[str | None, str]]] = defaultdict(set)
    for device in devices:
        for fact in device.facts.get("gpu.process", ()):
            seen[_name(fact)].add((device.host, device.name))
    return max(seen, key=lambda name: len(seen[name]), default="")


def _foreign(device: Device, devices: Sequence[Device], own: str, limits: Limits) -> list[NodeFact]:
    """Processes that cannot be the rank of this device."""
    rows = _rows(device, limits)
    gone = [fact for fact in rows if any(word in fact.text.lower() for word in _GONE)]
    if gone:
        return gone
    elsewhere = {f.text.partition(" ")[0] for d in devices if d is not device for f in d.facts.get("gpu.process", ())}
    rows = [fact for fact in rows if fact.text.partition(" ")[0] not in elsewhere]
    others = [fact for fact in rows if _name(fact) != own]
    if others and len(rows) > len(others):
        return others
    usual = max(len(_rows(d, limits)) for d in devices if d is not device) if len(devices) > 1 else 1
    return sorted(rows, key=lambda fact: fact.number or 0)[: len(rows) - usual] if len(rows) > max(usual, 1) else []


def _unowned(device: Device) -> float:
    """Memory in use beyond what the listed processes hold; 0 where the table lists none for this device."""
    used, rows = device.number("gpu.memory_used_mib"), device.facts.get("gpu.process", ())
    owned = sum(fact.number or 0 for fact in {fact.text: fact for fact in rows}.values())
    return used - owned if used is not None and owned > 0 else 0.0


def _finding(device: Device, foreign: Sequence[NodeFact], placement: Placement | None) -> Finding:
    pids = ", ".join(fact.text.partition(" ")[0] for fact in foreign[:3])
    total = sum(fact.number or 0 for fact in foreign)
    named = blame([device], placement)
    gone = any(word in foreign[0].text.lower() for word in _GONE)
    rows: tuple[Evidence, ...] = tuple(
        shown(f"process on {device.name}", f, f"{f.text} {f.number or 0:.0f} MiB") for f in foreign[:4]
    )
    return Finding(
        title=f"process {pids} that is no rank of the job holds {total:,.0f} MiB of {named.devices[0]}",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if gone else Confidence.MEDIUM,
        culprits=named,
        evidence=rows,
        fix=(
            f"end it: kill {pids} (find its owner with ps -o user,cmd -p PID; it may run in another container)",
            "nothing to kill: fuser -v /dev/nvidia*, then nvidia-smi --gpu-reset -i INDEX",
            "nvidia-smi -c EXCLUSIVE_PROCESS keeps others away; let the scheduler clean up between jobs",
        ),
        verify="nvidia-smi pmon -c 1 shows one process per GPU, the rank's",
        why="the process is gone but its memory is not" if gone else "its device has more processes than its peers'",
        doubt="" if gone else "a helper of the job itself (profiler, inference server) looks the same",
    )


def _left_behind(device: Device, used: NodeFact, placement: Placement | None) -> Finding:
    named = blame([device], placement)
    return Finding(
        title=f"{_unowned(device):,.0f} MiB of {named.devices[0]} belong to no process that nvidia-smi lists",
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM,
        culprits=named,
        evidence=(shown("memory in use", used, used.number or 0, "MiB"),),
        fix=("fuser -v /dev/nvidia* as root; reset the GPU when nobody holds it",),
        verify="nvidia-smi shows near 0 MiB in use when no job runs",
        why="the sum over the listed processes is smaller than what is in use",
        doubt="processes of other containers are not listed inside a container",
    )
