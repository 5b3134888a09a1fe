"""Rules, findings and rule files to test the engine with, each built from a sound default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddiag.model.signals import JobFacts
from ddiag.rulekit import (
    Abstain,
    Confidence,
    Cost,
    Culprits,
    Evidence,
    Finding,
    LoadedRule,
    Rule,
    Severity,
    View,
)

RULE_FILE = '''
"""The loader is slow.

## Meaning
The device waits.

## Impact
Time is lost.

## Diagnosis
Look at the loader.

## Mitigation
More workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import InputWait
from ddiag.rulekit import Abstain, Confidence, Cost, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="ACME101",
    root_cause="ACME-01",
    needs=(InputWait,),
    capture="record the loader",
    symptom="slow",
    evidence="input wait",
)


@dataclass(frozen=True)
class Limits:
    stall_share: float = 0.1
    """Share of the step."""
    most: int = 3
    loud: bool = False


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    wait = signals[InputWait]
    if wait.stall_share > limits.stall_share:
        yield Finding(
            title=f"input takes {wait.stall_share:.0%}",
            severity=Severity.WARNING,
            confidence=Confidence.HIGH,
            evidence=(Evidence("stall", wait.stall_share, "share", limits.stall_share),),
            fix=("num_workers=8",),
            verify=f"stall below {limits.stall_share:.0%} after {wait.wait_ms} ms",
            cost=Cost(wait.stall_ms, wait.stall_share),
        )
'''


def write_rule(folder: Path, *changes: tuple[str, str], name: str = "acme101_slow_loader.py") -> Path:
    """A sound rule file in *folder* with each (old, new) replaced; the old text must be there."""
    text = RULE_FILE
    for old, new in changes:
        assert old in text, f"the default rule file has no {old!r}"
        text = text.replace(old, new)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text.lstrip(), encoding="utf-8")
    return path


@dataclass(frozen=True)
class NoLimits:
    pass


Check = Callable[[View, Any], Iterator[Finding | Abstain]]


def loaded(check: Check | None = None, *, built_in: bool = True, **rule: Any) -> LoadedRule:
    """A rule that never finds anything, or does what *check* says."""
    given = {"id": "DD101", "root_cause": "RC-43", "needs": (JobFacts,), "capture": "c", "symptom": "s"}
    return LoadedRule(
        rule=Rule(**{**given, "evidence": "e", **rule}),
        title="A cause",
        sections={},
        limits=NoLimits(),
        check=check or (lambda signals, limits: iter(())),
        family="dd1_input",
        path="rules/dd1_input/x.py",
        built_in=built_in,
    )


def finding(rule: str = "DD101", *, ranks: tuple[int, ...] = (), ms: float | None = 10.0, **changes: Any) -> Finding:
    """A warning of *rule* about *ranks* that costs *ms* of each step."""
    given: dict[str, Any] = {
        "title": f"{rule} found something",
        "severity": Severity.WARNING,
        "confidence": Confidence.HIGH,
        "evidence": (Evidence(f"figure of {rule}", 1.5, "ms"),),
        "fix": (f"fix of {rule}",),
        "verify": "look again",
        "culprits": Culprits(ranks=ranks),
        "cost": Cost(ms, None if ms is None else ms / 100),
        "rule": rule,
        "root_cause": "RC-43",
    }
    return Finding(**{**given, **changes})
