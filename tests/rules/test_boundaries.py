"""Where each rule that judges a time per step begins to speak, and where its severity changes.

The boundaries are written out here, so that moving a limit is a decision that shows in two places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

from ddiag.rulekit import Severity
from tests.factories import EPOCH_NS
from tests.rules.checking import findings, the_finding

STEP_MS = 200.0
INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL


@dataclass(frozen=True)
class Boundary:
    """*job(ms)* is a job in which the judged time is ms per step."""

    job: Callable[[float], dict[str, Any]]
    shares: tuple[tuple[float, Severity], ...]
    """From which share of the step on which severity."""
    least_ms: float
    """Below it the rule is silent however short the step."""


def launch_gap(ms: float) -> dict[str, Any]:
    small = {"launch_gap_ms": ms, "median_kernel_us": 6.0, "launches_per_step": 9000.0, "host_busy_share": 0.9}
    return {"host_launch": small, "step_budget": {"host_ms": ms}}


def long_gaps(ms: float) -> dict[str, Any]:
    row = {"start_ns": EPOCH_NS, "gap_ms": ms, "host_ms_in_calls": 0.0, "top_op": ""}
    return {
        "host_launch": {"long_gaps": pl.DataFrame([{"rank": r, "step": s, **row} for r in range(8) for s in range(5)])}
    }


def recompute(ms: float) -> dict[str, Any]:
    return {"recompute": {"ms_per_step": ms, "memory_share": 0.4}}


def elementwise(ms: float) -> dict[str, Any]:
    return {"kernel_mix": {"ms": {"elementwise": ms, "gemm": 0.5 * ms}}}


def full_link(ms: float) -> dict[str, Any]:
    return {"copies": {"link_busy_share": 0.9, "exposed_ms": ms}}


USUAL = ((0.05, WARNING), (0.25, CRITICAL))
SMALL = ((0.02, INFO), (0.05, WARNING), (0.25, CRITICAL))
BOUNDARIES = {
    "DD101": Boundary(lambda ms: {"input_wait": {"stall_ms": ms}}, USUAL, 1.0),
    "DD102": Boundary(lambda ms: {"input_wait": {"stall_ms": ms, "single_process": True}}, USUAL, 1.0),
    "DD103": Boundary(lambda ms: {"steps": 8, "input_wait": {"stall_ms": ms, "spike_period": 4}}, USUAL, 1.0),
    "DD201": Boundary(launch_gap, ((0.10, WARNING), (0.30, CRITICAL)), 1.0),
    "DD202": Boundary(lambda ms: {"sync_points": {"stall_ms": ms}}, USUAL, 1.0),
    "DD203": Boundary(lambda ms: {"python_overhead": {"gc_ms_per_step": ms, "gc_ranks": (1,)}}, SMALL, 1.0),
    "DD204": Boundary(long_gaps, USUAL, 2.0),
    "DD205": Boundary(lambda ms: {"python_overhead": {"compile_ms": 5 * ms}}, USUAL, 10.0),
    "DD208": Boundary(lambda ms: {"python_overhead": {"logging_ms_per_step": ms}}, SMALL, 1.0),
    "DD301": Boundary(
        lambda ms: {"optimizer_step": {"implementation": "foreach", "ms_per_step": ms / 0.65}},
        ((0.03, INFO), (0.08, WARNING), (0.30, CRITICAL)),
        1.0,
    ),
    "DD302": Boundary(
        lambda ms: {"attention": {"unfused_ms": ms}}, ((0.05, INFO), (0.10, WARNING), (0.50, CRITICAL)), 1.0
    ),
    "DD303": Boundary(recompute, ((0.05, WARNING),), 1.0),
    "DD304": Boundary(lambda ms: elementwise(2 * ms), ((0.05, INFO), (0.10, WARNING)), 1.0),
    "DD602": Boundary(lambda ms: {"allocator_calls": {"ms_per_step": ms, "frees_per_step": 3.0}}, SMALL, 1.0),
    "DD1001": Boundary(lambda ms: {"copies": {"offload": "optimizer", "offload_exposed_ms": ms}}, USUAL, 1.0),
    "DD1002": Boundary(lambda ms: {"copies": {"cpu_optimizer_ms": ms}}, USUAL, 2.0),
    "DD1003": Boundary(lambda ms: {"copies": {"pinned": False, "exposed_ms": ms}}, SMALL, 0.5),
    "DD1004": Boundary(full_link, USUAL, 1.0),
    "DD1101": Boundary(lambda ms: {"precision": {"ms": {"fp32": 2 * ms}}}, ((0.025, INFO), (0.05, WARNING)), 0.5),
}


@pytest.mark.parametrize("rule", BOUNDARIES)
def test_is_silent_just_below_its_first_share(rule: str) -> None:
    boundary = BOUNDARIES[rule]
    assert findings(rule, **boundary.job(0.99 * boundary.shares[0][0] * STEP_MS)) == []


@pytest.mark.parametrize(
    ("rule", "index"), [(rule, index) for rule, boundary in BOUNDARIES.items() for index in range(len(boundary.shares))]
)
def test_severity_changes_exactly_there(rule: str, index: int) -> None:
    boundary = BOUNDARIES[rule]
    share, severity = boundary.shares[index]
    assert the_finding(rule, **boundary.job(1.01 * share * STEP_MS)).severity is severity
    if index:
        below = the_finding(rule, **boundary.job(0.99 * share * STEP_MS))
        assert below.severity is boundary.shares[index - 1][1]


@pytest.mark.parametrize("rule", BOUNDARIES)
def test_short_times_are_noise_however_short_the_step(rule: str) -> None:
    boundary = BOUNDARIES[rule]
    short_step = boundary.least_ms / (boundary.shares[0][0] * 2)
    assert findings(rule, step_ms=short_step, **boundary.job(0.99 * boundary.least_ms)) == []
    assert len(findings(rule, step_ms=short_step, **boundary.job(1.01 * boundary.least_ms))) == 1
