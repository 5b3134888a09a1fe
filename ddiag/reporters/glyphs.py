"""Shapes for terminals: every severity and activity has its own, so nothing depends on colour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddiag.reporters.words import SEVERITY_SHAPES, STATUS_SHAPES
from ddiag.rulekit.diagnosis import Status
from ddiag.rulekit.finding import Severity


@dataclass(frozen=True)
class Glyphs:
    severity: Mapping[Severity, str]
    status: Mapping[Status, str]
    parts: Mapping[str, str]
    """Column of the step budget -> the character its bar is drawn with."""
    branch: str
    separator: str
    ellipsis: str
    culprit: str


UNICODE = Glyphs(
    severity=SEVERITY_SHAPES,
    status=STATUS_SHAPES,
    parts={
        "compute_ms": "█",
        "comm_transfer_ms": "▓",
        "comm_wait_ms": "╱",
        "copy_ms": "▚",
        "input_ms": "▒",
        "sync_ms": "═",
        "host_ms": "░",
        "idle_ms": "·",
    },
    branch="└",
    separator=" · ",
    ellipsis="…",
    culprit="▶",
)
ASCII = Glyphs(
    severity={Severity.CRITICAL: "#", Severity.WARNING: "!", Severity.INFO: "i"},
    status={
        Status.HEALTHY: "+",
        Status.DEGRADED: "!",
        Status.STALLED: "#",
        Status.CRASHED: "#",
        Status.INCONCLUSIVE: "?",
    },
    parts={
        "compute_ms": "#",
        "comm_transfer_ms": "%",
        "comm_wait_ms": "/",
        "copy_ms": "x",
        "input_ms": "o",
        "sync_ms": "=",
        "host_ms": "-",
        "idle_ms": ".",
    },
    branch="`",
    separator=", ",
    ellipsis="...",
    culprit=">",
)
