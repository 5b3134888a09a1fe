from __future__ import annotations

from pathlib import Path

from ddiag.rulekit.limits import apply_limits
from ddiag.rulekit.loader import load_rule
from ddiag.rulekit.rule_docs import LimitDoc, limit_docs, verify_text
from tests.unit.rulekit.making import write_rule


def test_limits_are_told_with_the_value_in_effect(tmp_path: Path) -> None:
    (rule,) = apply_limits([load_rule(write_rule(tmp_path), built_in=False)], {"ACME101": {"stall_share": 0.3}}, "x")
    assert limit_docs(rule) == (
        LimitDoc("stall_share", 0.3, "Share of the step."),
        LimitDoc("most", 3, ""),
        LimitDoc("loud", False, ""),
    )


def test_the_proof_of_a_fix_shows_limits_and_not_figures_of_a_run(tmp_path: Path) -> None:
    rule = load_rule(write_rule(tmp_path), built_in=False)
    assert verify_text(rule) == "stall below 10% after … ms"


def test_a_proof_that_is_only_a_figure_is_told_in_general(tmp_path: Path) -> None:
    change = ('verify=f"stall below {limits.stall_share:.0%} after {wait.wait_ms} ms"', "verify=str(wait)")
    assert "no longer reports it" in verify_text(load_rule(write_rule(tmp_path, change), built_in=False))
