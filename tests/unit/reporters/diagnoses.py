"""Diagnoses to report on, made by the real engine from hand-made findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddiag.model.run import Coverage, InputFile, RecordingCost
from ddiag.model.signals import Signals
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Severity, View
from ddiag.rulekit.diagnosis import Diagnosis, conclude
from tests.factories import make_signals
from tests.unit.rulekit.making import finding, loaded

NASTY = "a|b <script>alert(1)</script> [x](http://y) \x1b[31mred\x1b[0m \u202e*bold* @all"
"""Text as hostile evidence may have it."""

COVERAGE = Coverage(
    inputs=(
        InputFile("r0.json", "kineto", 100, rank=0, events=9),
        InputFile("r1.json", "kineto", 100, note="cut at 71 %"),
    ),
    unreadable=(("rank3.json", "is empty"),),
    ranks_seen=(0, 1),
    ranks_expected=tuple(range(8)),
    dropped_records=12,
    notes=("clocks could not be aligned",),
)

RECORDED = Coverage(
    inputs=(
        InputFile("runs/job/r0.ring", "recording", 100, rank=0, events=9, note="ended without closing its ring"),
        InputFile("runs/job/r1.ring", "recording", 100, rank=1, events=9, note="ended without closing its ring"),
    ),
    ranks_seen=(0, 1),
    ranks_expected=(0, 1),
    recording_cost=RecordingCost(rank=1, share=0.0029, ms_per_step=0.38, step_ms=134.0),
    ending="failed with exit code 3",
)

LATE = finding(
    "DD501",
    title="rank 3 arrives last in 198 of 200 collectives",
    severity=Severity.CRITICAL,
    culprits=Culprits(ranks=(3,), hosts=("node-a",)),
    victims=(0, 1, 2),
    ms=36.0,
    evidence=(
        Evidence("waiting it causes", 0.9, "share", 0.5, "collectives"),
        Evidence("message", 26214400, "bytes"),
        Evidence("chance of this by luck", 1e-9, ""),
        Evidence("arrives last", 198, "of 200 collectives"),
    ),
    fix=("look at `nvidia-smi -q -d CLOCK` on node-a", "move rank 3 to another device"),
    verify="`ddiag analyze NEW_TRACES`: nobody stands out",
)
EXPOSED = finding("DD402", title="only 4% of communication overlaps", root_cause="RC-51", ms=30.0)
SMALL = finding("DD301", title="the optimizer is not fused", root_cause="RC-88", ms=2.0, severity=Severity.INFO)


def diagnosed(
    *findings: Finding, coverage: Coverage | None = None, abstain: int = 0, **signals: Any
) -> tuple[Diagnosis, Signals]:
    """A diagnosis with *findings* (DD402 is explained by DD501) and *abstain* rules that could not judge."""

    def saying(found: Finding) -> Any:
        def check(view: View, limits: Any) -> Iterator[Finding | Abstain]:
            yield found

        return check

    rules = [
        loaded(
            saying(found),
            id=found.rule,
            root_cause=found.root_cause,
            explained_by=("DD501",) if found.rule == "DD402" else (),
        )
        for found in findings
    ]
    rules += [
        loaded(lambda view, limits: iter([Abstain("no memory events", "profile_memory=True")]), id=f"DD60{n}")
        for n in range(abstain)
    ]
    given = make_signals(**signals)
    return conclude(given, coverage or Coverage(), [*rules, loaded(id="DD999")], version="1.2.3"), given


def low(found: Finding) -> Finding:
    """The same finding, less sure."""
    return Finding(**{**found.__dict__, "confidence": Confidence.LOW})
