"""What a preflight check of a node says; the facts it is made from are :class:`NodeReport`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ddiag.schema.node import UNLIMITED, CouldNot, Fact, NodeReport

__all__ = ["UNLIMITED", "Check", "CouldNot", "Difference", "Fact", "NodeReport", "Outcome"]


class Outcome(str, Enum):
    FAIL = "fail"
    """Jobs will break or crawl on this node."""
    WARN = "warn"
    """Fine for some jobs, a trap for others."""
    OK = "ok"
    SKIPPED = "skipped"
    """Could not be checked here."""

    @property
    def order(self) -> int:
        """0 = worst."""
        return list(Outcome).index(self)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    """As an engineer would call it: 'shared memory', 'locked memory'."""
    outcome: Outcome
    found: str
    """What is so, with numbers: '64 MiB, all free'."""
    meaning: str = ""
    """What follows from it, for a person who is no GPU expert; empty for what is fine."""
    fix: str = ""
    """What to do, as a command where there is one."""
    area: str = ""
    """host, storage, network, software or gpu"""


@dataclass(frozen=True)
class Difference:
    """One fact in which some nodes are unlike most."""

    key: str
    device: str | None
    usual: str
    """What most nodes have; ``not there`` where most lack it."""
    hosts: tuple[str, ...]
    value: str
    majority: int
    """Nodes that have the usual value."""
    decided: bool
    """False: no value is held by more than half, so nobody can be called the odd one."""
