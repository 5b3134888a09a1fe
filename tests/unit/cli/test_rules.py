from __future__ import annotations

from pathlib import Path

from ddiag._paths import rules_folder
from ddiag.reporters.rule_table import rule_table
from ddiag.rulekit.loader import load_rules
from tests.unit.cli.conftest import Run
from tests.unit.rulekit.making import write_rule


def test_the_list_names_every_rule(run: Run) -> None:
    text = run("rules", "list").out
    for rule in load_rules(rules_folder()):
        assert rule.rule.id in text
    assert "DD4 Communication" in text


def test_one_rule_is_shown_with_the_limits_in_effect(run: Run) -> None:
    Path("ddiag.toml").write_text("[limits]\nDD101.stall_share = 0.33\n")
    text = run("rules", "show", "dd101").out
    for words in ("# DD101", "## Mitigation", "## Verify", "stall_share = 0.33"):
        assert words in text


def test_an_unknown_rule_is_met_with_a_suggestion(run: Run) -> None:
    result = run("rules", "show", "DD10")
    assert (result.code, "did you mean DD" in result.err) == (2, True)


def test_the_table_is_the_one_that_is_generated(run: Run) -> None:
    assert run("rules", "table").out == rule_table(load_rules(rules_folder()))


def test_a_teams_rules_are_listed_shown_and_checked(run: Run, tmp_path: Path) -> None:
    write_rule(tmp_path / "rules")
    assert "ACME101" in run("rules", "list", "--rules", tmp_path / "rules").out
    assert "# ACME101" in run("rules", "show", "ACME101", "--rules", tmp_path / "rules").out
    result = run("rules", "check", tmp_path / "rules")
    assert result.code == 0
    assert "1 of them yours" in result.err


def test_check_finds_what_is_wrong_with_a_file_and_between_files(run: Run, tmp_path: Path) -> None:
    write_rule(tmp_path / "a", ("## Impact", "## Effect"))
    write_rule(tmp_path / "b", ('evidence="input wait",', 'evidence="input wait", explained_by=("DD999",),'))
    assert "lacks the section Impact" in run("rules", "check", tmp_path / "a").err
    result = run("rules", "check", tmp_path / "b")
    assert (result.code, "DD999, which is no rule" in result.err) == (2, True)


def test_check_looks_at_thresholds_too(run: Run) -> None:
    Path("ddiag.toml").write_text("[limits]\nDD1.x = 1\n")
    assert run("rules", "check").code == 2
