"""Runs one rule file on the healthy job with overrides, the way the engine would."""

from __future__ import annotations

from functools import cache
from typing import Any

from ddiag._paths import rules_folder
from ddiag.rulekit import Abstain, Evidence, Finding, LoadedRule
from ddiag.rulekit.loader import load_rules
from ddiag.rulekit.rule import View
from tests.factories import make_signals


@cache
def _rules() -> dict[str, LoadedRule]:
    return {rule.rule.id: rule for rule in load_rules(rules_folder())}


def check(rule_id: str, **overrides: Any) -> list[Finding | Abstain]:
    """Everything rule *rule_id* yields on :func:`make_signals` with *overrides*; [] where it does not apply."""
    loaded, signals = _rules()[rule_id], make_signals(**overrides)
    if loaded.rule.applies is not None and not loaded.rule.applies(signals):
        return []
    missing = [family.__name__ for family in loaded.rule.needs if not signals.has(family)]
    assert not missing, f"{rule_id} would abstain: {missing}"
    return list(loaded.check(View(signals, loaded.rule), loaded.limits))


def findings(rule_id: str, **overrides: Any) -> list[Finding]:
    """The findings only."""
    return [item for item in check(rule_id, **overrides) if isinstance(item, Finding)]


def the_finding(rule_id: str, **overrides: Any) -> Finding:
    """The one finding the rule must yield."""
    found = findings(rule_id, **overrides)
    assert len(found) == 1, f"{rule_id} yields {len(found)} findings"
    return found[0]


def evidence(finding: Finding, label: str) -> Evidence:
    """The first evidence row named *label*."""
    rows = [row for row in finding.evidence if row.label == label]
    assert rows, f"no evidence {label!r} among {[row.label for row in finding.evidence]}"
    return rows[0]
