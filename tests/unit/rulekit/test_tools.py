"""The tools around rules: the generated table, and the scaffold of a new rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag._paths import rules_folder
from ddiag.reporters.rule_table import family_title, rule_page, rule_table
from ddiag.rulekit.loader import load_rule, load_rules
from tests.unit.rulekit.making import write_rule
from tools import gen_rule_docs, new_rule


def test_the_table_in_the_repository_is_current() -> None:
    assert (rules_folder() / "README.md").read_text(encoding="utf-8") == rule_table(load_rules(rules_folder()))


def test_an_outdated_table_is_noticed_and_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "README.md"
    assert gen_rule_docs.main(["--check", "--output", str(output)]) == 1
    assert "out of date" in capsys.readouterr().err
    assert not output.exists()
    assert gen_rule_docs.main(["--output", str(output)]) == 0
    assert gen_rule_docs.main(["--check", "--output", str(output)]) == 0


def test_every_rule_is_a_row_with_all_six_cells() -> None:
    rules = load_rules(rules_folder())
    rows = [line for line in rule_table(rules).splitlines() if line.startswith("| **")]
    assert len(rows) == len(rules)
    for row in rows:
        cells = row.replace("\\|", "").strip("|").split("|")
        assert len(cells) == 6
        assert all(cell.strip(" …") for cell in cells), row


def test_the_page_of_a_rule_is_its_runbook(tmp_path: Path) -> None:
    page = rule_page(load_rule(write_rule(tmp_path / "acme1_input"), built_in=False))
    for words in ("# ACME101 The loader is slow.", "## Mitigation\n\nMore workers.", "`stall_share = 0.1`"):
        assert words in page
    assert "ACME101.stall_share = 0.1" in page
    assert "needs: input wait" in page


@pytest.mark.parametrize(
    ("folder", "title"),
    [("dd4_communication", "DD4 Communication"), ("dd11_numerics", "DD11 Numerics"), ("acme_storage", "Storage")],
)
def test_families_have_titles(folder: str, title: str) -> None:
    assert family_title(folder) == title


def scaffold(tmp_path: Path, *arguments: str) -> int:
    places = ("--rules", str(tmp_path / "rules"), "--tests", str(tmp_path / "tests"))
    (tmp_path / "rules").mkdir(exist_ok=True)
    return new_rule.main([*arguments, *places])


def test_a_new_rule_keeps_the_contract_and_its_tests_fail(tmp_path: Path) -> None:
    assert scaffold(tmp_path, "DD107", "slow_storage", "--root-cause", "RC-101", "--needs", "InputWait,Copies") == 0
    rule = load_rule(tmp_path / "rules/dd1_input/dd107_slow_storage.py", built_in=True)
    assert [family.__name__ for family in rule.rule.needs] == ["JobFacts", "StepBudget", "InputWait", "Copies"]
    tests = (tmp_path / "tests/test_dd107_slow_storage.py").read_text()
    assert tests.count("pytest.fail(") == 2
    compile(tests, "test", "exec")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("D107", "x", "--root-cause", "RC-101"), "write the id as DD107"),
        (("DD107", "Slow Storage", "--root-cause", "RC-101"), "snake case"),
        (("DD2101", "x", "--root-cause", "RC-101"), "no such family"),
        (("DD107", "x", "--root-cause", "101"), "as RC-101"),
        (("DD107", "x", "--root-cause", "RC-101", "--needs", "Inputs"), "no such signal family: Inputs"),
    ],
)
def test_a_faulty_request_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SystemExit):
        scaffold(tmp_path, *arguments)
    assert words in " ".join(capsys.readouterr().err.split())


def test_an_id_is_never_used_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scaffold(tmp_path, "DD107", "slow_storage", "--root-cause", "RC-101")
    with pytest.raises(SystemExit):
        scaffold(tmp_path, "DD107", "other", "--root-cause", "RC-102")
    assert "taken by" in capsys.readouterr().err
