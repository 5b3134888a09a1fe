"""What a rule says: a finding with its culprits, cost, numbers, fix and proof."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def order(self) -> int:
        """0 = worst."""
        return list(Severity).index(self)


class Confidence(str, Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class State(str, Enum):
    """What the finding says of the job."""

    DEGRADED = "degraded"
    """It runs, but slowly or wastefully."""
    STALLED = "stalled"
    CRASHED = "crashed"

    @property
    def stopped(self) -> bool:
        return self is not State.DEGRADED


class Role(str, Enum):
    CAUSE = "cause"
    CONSEQUENCE = "consequence"


@dataclass(frozen=True)
class Evidence:
    """One number (or word) behind a finding."""

    label: str
    value: float | int | str
    unit: str = ""
    limit: float | int | str | None = None
    """The threshold it was compared with, in the same unit."""
    source: str = ""
    """Where it comes from: file:line, table, or the figure's definition."""


@dataclass(frozen=True)
class Culprits:
    """Who or what is to blame; all empty = the job as a whole."""

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    where: str | None = None
    """Line of code, option or operator."""


@dataclass(frozen=True)
class Cost:
    """What it costs; None = unknown."""

    ms_per_step: float | None = None
    step_share: float | None = None
    """0–1."""
    gpu_hours: float | None = None
    """Per 24 hours of this job on all its devices, or over the incident where it has ended."""


@dataclass(frozen=True)
class Finding:
    """What one rule found. ``rule``, ``root_cause``, ``role`` and ``explained_by`` are filled by the engine."""

    title: str
    """One sentence fragment with the key number and culprit; no full stop."""
    severity: Severity
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    fix: tuple[str, ...]
    """Concrete actions with exact option names, best first."""
    verify: str
    """Command or observation that shows whether the fix worked."""
    culprits: Culprits = Culprits()
    victims: tuple[int, ...] = ()
    cost: Cost = Cost()
    why: str = ""
    """Why we believe it."""
    doubt: str = ""
    """What would prove us wrong."""
    references: tuple[str, ...] = ()
    state: State = State.DEGRADED
    began_ns: int | None = None
    """When it began (Unix time): of two that stopped the job, the earlier is acted on first."""
    rule: str = ""
    root_cause: str = ""
    role: Role = Role.CAUSE
    explained_by: str | None = None
    """Rule id of the finding that explains this consequence."""
    also_seen_by: tuple[str, ...] = ()
    """Other rules that found the same cause and culprit and were merged into this one."""


@dataclass(frozen=True)
class Abstention:
    """A rule that could not decide, and the capture that would let it."""

    rule: str
    needs: tuple[str, ...]
    """Missing signals, or the reason in words."""
    capture: str
    title: str = ""


@dataclass(frozen=True)
class Abstain:
    """Yielded by a check whose signals are there but do not decide."""

    reason: str
    capture: str
