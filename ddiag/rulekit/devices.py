"""Facts of tools, gathered by device, for rules that compare a device with its peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddiag.model.incident import NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import NodeFacts
from ddiag.rulekit.finding import Culprits


@dataclass(frozen=True)
class Device:
    """One GPU as tools describe it. Facts under its index and under its bus id are together."""

    host: str | None
    name: str
    """gpu3, or a bus id where no index is known."""
    facts: Mapping[str, tuple[NodeFact, ...]]

    def last(self, key: str) -> NodeFact | None:
        found = self.facts.get(key, ())
        return found[-1] if found else None

    def number(self, key: str) -> float | None:
        """The last number of a series."""
        found = self.last(key)
        return None if found is None else found.number

    def highest(self, key: str) -> float | None:
        return max((fact.number for fact in self.facts.get(key, ()) if fact.number is not None), default=None)

    def text(self, key: str) -> str:
        found = self.last(key)
        return "" if found is None else found.text

    def active(self, key: str) -> bool:
        """Whether a flag was set in any reading."""
        return any(fact.number == 1.0 for fact in self.facts.get(key, ()))


def gpus(facts: NodeFacts, placement: Placement | None) -> tuple[Device, ...]:
    """Every GPU that a tool describes, in order of host and number."""
    told = [fact for fact in facts.of("gpu.", "pcie.") if fact.device is not None]
    apart = _files_are_nodes(told)
    found: dict[tuple[str | None, str, str], dict[str, list[NodeFact]]] = defaultdict(lambda: defaultdict(list))
    for fact in told:
        file = file_of(fact) if apart and fact.host is None else ""
        found[fact.host, _one_name(fact, placement), file][fact.key].append(fact)
    devices = [
        Device(host, name, {key: tuple(rows) for key, rows in keys.items()}) for (host, name, _), keys in found.items()
    ]
    return tuple(sorted(devices, key=lambda one: (one.host or "", _number(one.name), one.name)))


def file_of(fact: NodeFact) -> str:
    """The file a fact stands in, without folder and line."""
    return fact.source.rsplit(":", 1)[0].rsplit("/", 1)[-1]


def _files_are_nodes(told: Sequence[NodeFact]) -> bool:
    """Outputs without a host: two files that describe the same device differently are of two nodes."""
    known: dict[tuple[str | None, str], str] = {}
    for fact in told:
        if fact.host is None and fact.key in ("gpu.bus_id", "gpu.uuid", "gpu.name"):
            before = known.setdefault((fact.device, fact.key), fact.text)
            if before != fact.text:
                return True
    files: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for fact in told:
        if fact.host is None:
            files[fact.device, fact.key].add(file_of(fact))
    return sum(len(names) > 1 for names in files.values()) > len(files) / 2


def _one_name(fact: NodeFact, placement: Placement | None) -> str:
    """The index of a bus id, where some tool connects them."""
    device = str(fact.device)
    if placement is None or device.startswith("gpu"):
        return device
    index = next(
        (i for (host, i), bus in placement.bus_of.items() if bus == device and host in (None, fact.host)), None
    )
    return device if index is None else f"gpu{index}"


def _number(name: str) -> int:
    return int(name[3:]) if name.startswith("gpu") and name[3:].isdigit() else 1 << 20


def blame(devices: Sequence[Device], placement: Placement | None) -> Culprits:
    """Devices, their hosts, and the ranks on them: all, or none when one of them has no known rank."""
    if placement is None:
        return Culprits(devices=tuple(one.name for one in devices))
    seats = [placement.on_device(one.host, placement.bus(one.host, one.name)) for one in devices]
    ranks = sorted({seat.rank for group in seats for seat in group}) if all(seats) else []
    hosts = dict.fromkeys(host for one in devices if (host := placement.host(one.host)) is not None)
    names = [placement.name(one.host, placement.bus(one.host, one.name) or one.name) for one in devices]
    return Culprits(ranks=tuple(ranks), hosts=tuple(hosts), devices=tuple(dict.fromkeys(names)))
