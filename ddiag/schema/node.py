"""What ``ddiag doctor`` found out about one node: facts without judgement, and what it could not look at.

As JSON (``ddiag doctor --json``)::

    {
        "ddiag_node": 1,
        "host": "gn12",
        "taken_ns": 1790000000000000000,
        "facts": [
            {"key": "limit.memlock_bytes", "value": 8388608},
            {"key": "gpu.pcie.width", "value": 16, "device": "gpu0"},
        ],
        "could_not": [{"what": "GPUs", "why": "no NVIDIA driver"}],
    }
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TypeAlias

from ddiag.errors import InputError

NODE_FORMAT = 1
MARK = "ddiag_node"
"""The first key of a report; tells it from other JSON."""
Value: TypeAlias = "int | float | str | bool"
UNLIMITED = -1
"""A limit that is none."""


@dataclass(frozen=True)
class Fact:
    """One fact; the unit is in the key (``_bytes``, ``_mhz``, ``_c``, ``_w``)."""

    key: str
    value: Value
    device: str | None = None
    """``gpu0``, ``mlx5_0``, ``eth0``, or a path."""


@dataclass(frozen=True)
class CouldNot:
    """Something that could not be looked at."""

    what: str
    why: str


@dataclass(frozen=True)
class NodeReport:
    """One node at one moment."""

    host: str
    taken_ns: int
    facts: tuple[Fact, ...]
    could_not: tuple[CouldNot, ...] = ()
    source: str = ""

    def get(self, key: str, device: str | None = None) -> Value | None:
        """The value of *key* (of *device*); None when it is not known."""
        return next((fact.value for fact in self.facts if fact.key == key and fact.device == device), None)

    def number(self, key: str, device: str | None = None) -> float | None:
        found = self.get(key, device)
        return float(found) if isinstance(found, (int, float)) else None

    def text(self, key: str, device: str | None = None) -> str:
        found = self.get(key, device)
        return "" if found is None else str(found)

    def of(self, key: str) -> Iterator[tuple[str, Value]]:
        """(device, value) wherever *key* is known of a device."""
        return ((fact.device, fact.value) for fact in self.facts if fact.key == key and fact.device is not None)


def to_json(report: NodeReport) -> str:
    facts = [{key: value for key, value in asdict(fact).items() if value is not None} for fact in report.facts]
    body = {
        MARK: NODE_FORMAT,
        "host": report.host,
        "taken_ns": report.taken_ns,
        "facts": facts,
        "could_not": [asdict(one) for one in report.could_not],
    }
    return json.dumps(body, indent=1) + "\n"


def from_json(text: str | bytes, source: str) -> NodeReport:
    """The report in *text*; raises :class:`~ddiag.errors.InputError` with one line when it is none."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{source}: not JSON ({error})") from error
    if not isinstance(found, dict) or not isinstance(found.get(MARK), int):
        raise InputError(f"{source}: not a report of ddiag doctor (write one with: ddiag doctor --json {source})")
    if found[MARK] > NODE_FORMAT:
        raise InputError(f"{source}: format {found[MARK]}, this ddiag reads up to {NODE_FORMAT}: use a newer ddiag")
    try:
        facts = tuple(Fact(str(one["key"]), one["value"], one.get("device")) for one in found["facts"])
        could_not = tuple(CouldNot(str(one["what"]), str(one["why"])) for one in found.get("could_not", ()))
        return NodeReport(str(found["host"]), int(found["taken_ns"]), facts, could_not, source)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{source}: incomplete report of ddiag doctor ({error})") from error
