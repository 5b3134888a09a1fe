"""Every root cause of the catalogue has a rule or a reason, a case that fires, and its look-alikes kept apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ddiag._paths import rules_folder
from ddiag.api import diagnose, load
from ddiag.rulekit.loader import load_rules
from ddiag.rulekit.root_causes import NO_RULE, ROOT_CAUSES

CASES = Path(__file__).resolve().parents[2] / "fixtures" / "cases"
RULES = {rule.rule.root_cause for rule in load_rules(rules_folder())}


@pytest.mark.parametrize("cause", ROOT_CAUSES)
def test_it_has_a_rule_or_a_reason(cause: str) -> None:
    assert (cause in RULES) != (cause in NO_RULE)


@pytest.mark.parametrize("cause", [cause for cause in ROOT_CAUSES if cause not in NO_RULE])
def test_it_has_a_case_of_ours_that_fires(cause: str) -> None:
    """As the primary cause; what is only ever worth a remark (red herrings, clocks apart) is found beside it."""
    cases = [path.parent for path in CASES.glob(f"{cause.lower()}-*/expected.json")]
    accepted = [json.loads((case / "expected.json").read_text())["root_causes"] for case in cases]
    assert any(cause in causes for causes in accepted) or any(cause in _found(case) for case in cases)


def _found(case: Path) -> set[str]:
    diagnosis = diagnose(load([str(path) for path in case.glob("input*")]))
    return {finding.root_cause for finding in diagnosis.findings}


def test_cases_are_named_after_what_they_are() -> None:
    names = [path.parent.name for path in CASES.rglob("expected.json")]
    assert [name for name in names if not re.match(r"(not-)?rc-\d\d-|healthy-", name)] == []
