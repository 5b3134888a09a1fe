"""A healthy job must be left in peace by every rule, whatever its shape."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ddiag._paths import rules_folder
from ddiag.model.signals import Signals
from ddiag.rulekit import LoadedRule
from ddiag.rulekit.loader import load_rules
from ddiag.rulekit.runner import run_rules
from tests.factories import make_signals

RULES = load_rules(rules_folder())
SHAPES: dict[str, dict[str, Any]] = {
    "eight devices": {},
    "one device": {"job_facts": {"ranks": (0,)}},
    "two ranks": {"job_facts": {"ranks": (0, 1)}},
    "host only": {"job_facts": {"device_kind": "cpu"}},
    "AMD": {"job_facts": {"device_kind": "rocm", "device_names": ("AMD Instinct MI300X",)}},
    "Python stacks": {"job_facts": {"with_stack": True}},
    "one step": {"steps": 1},
    "no step marks": {"steps": 1, "step_budget": {"source": "window", "note": "the capture is one step"}},
    "many steps": {"steps": 50},
    "long steps": {"step_ms": 2000.0},
    "unknown memory": {"memory": {"capacity_bytes": None}},
    "unknown copies": {"copies": {"pinned": None, "pageable_share": None}},
    "unmatched ranks": {"collectives": {"matched_ranks": 1}},
}


@cache
def healthy(shape: str = "eight devices") -> Signals:
    return make_signals(**SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule.id)
def test_a_healthy_job_is_left_in_peace(rule: LoadedRule, shape: str) -> None:
    outcome = run_rules([rule], healthy(shape))
    assert [finding.title for finding in outcome.findings] == []
    assert outcome.failures == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule.id)
def test_the_healthy_job_has_what_every_rule_needs(rule: LoadedRule) -> None:
    signals = healthy()
    if rule.rule.applies is not None and not rule.rule.applies(signals):
        return
    assert [family.__name__ for family in rule.rule.needs if not signals.has(family)] == []
    assert run_rules([rule], signals).abstentions == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule.id)
def test_an_absent_need_is_an_abstention_that_says_what_to_capture(rule: LoadedRule) -> None:
    for family in rule.rule.needs:
        without = Signals({kind: value for kind, value in healthy().families.items() if kind is not family})
        outcome = run_rules([rule], without)
        if rule.rule.applies is not None and not rule.rule.applies(without):
            continue
        assert [abstention.capture for abstention in outcome.abstentions] == [rule.rule.capture]
        assert outcome.findings == ()
