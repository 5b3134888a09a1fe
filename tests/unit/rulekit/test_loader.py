from __future__ import annotations

from pathlib import Path

import pytest

from ddiag._paths import rules_folder
from ddiag.errors import RuleError, UsageError
from ddiag.rulekit import LoadedRule
from ddiag.rulekit.loader import load_rule, load_rules, reference_problems
from tests.unit.rulekit.making import loaded, write_rule


def added(tmp_path: Path, *places: Path) -> list[LoadedRule]:
    """The rules of *places*, loaded as ``--rules`` folders beside no built-in ones."""
    none = tmp_path / "no built-in rules"
    none.mkdir()
    return list(load_rules(none, places))


def refused(path: Path, words: str) -> None:
    with pytest.raises(RuleError, match=words) as caught:
        load_rule(path, built_in=False)
    assert str(path) in str(caught.value)


def test_a_sound_file_is_loaded_with_its_runbook_and_limits(tmp_path: Path) -> None:
    rule = load_rule(write_rule(tmp_path / "acme1_input"), built_in=False)
    assert rule.rule.id == "ACME101"
    assert rule.title == "The loader is slow."
    assert rule.sections == {
        "Meaning": "The device waits.",
        "Impact": "Time is lost.",
        "Diagnosis": "Look at the loader.",
        "Mitigation": "More workers.",
    }
    assert (rule.limits.stall_share, rule.family, rule.built_in) == (0.1, "acme1_input", False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("## Meaning", "Meaning\n-------"),
        ("## Meaning", "Meaning:"),
        ("## Meaning\nThe device", "## Meaning\n\nThe device"),
    ],
)
def test_headings_may_be_written_as_people_write_them(tmp_path: Path, old: str, new: str) -> None:
    rule = load_rule(write_rule(tmp_path, (old, new)), built_in=False)
    assert rule.sections["Meaning"] == "The device waits."


def test_a_sentence_that_begins_with_a_heading_word_is_no_heading(tmp_path: Path) -> None:
    rule = load_rule(write_rule(tmp_path, ("Time is lost.", "Time is lost.\nDiagnosis is simple.")), built_in=False)
    assert rule.sections["Impact"] == "Time is lost.\nDiagnosis is simple."


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('id="ACME101"', 'id="ACME102"', "the file name says ACME101"),
        ('"ACME-01"', '"43"', "not of the form RC-43"),
        ("RULE = Rule(", "OTHER = Rule(", "has no RULE"),
        ("needs=(InputWait,)", "needs=(int,)", "not a signal family: int"),
        ('capture="record the loader"', 'capture=" "', "RULE.capture is empty"),
        ("@dataclass(frozen=True)", "@dataclass", "must be frozen"),
        ("class Limits:", "class Thresholds:", "has no dataclass Limits"),
        ("most: int = 3", "most: list[int] | None = None", "Limits.most must be an int"),
        ("stall_share: float = 0.1", "stall_share: float", "Limits.stall_share has no default"),
        ("def check(", "def chek(", "has no function check"),
        ("def check(signals: View, limits", "def check(signals: View, more: int, limits", "exactly"),
        ("## Impact", "## Effect", "lacks the section Impact"),
        ("More workers.", "", "lacks the section Mitigation"),
        ("## Diagnosis\nLook at the loader.\n\n## Mitigation", "## Mitigation", "lacks the section Diagnosis"),
        ('"""The loader is slow.', '"""', "must begin with the cause"),
        ('evidence="input wait",', 'evidence="input wait", explained_by=("ACME101",),', "names the rule itself"),
    ],
)
def test_a_broken_contract_names_the_file_and_the_fault(tmp_path: Path, old: str, new: str, words: str) -> None:
    refused(write_rule(tmp_path, (old, new)), words)


def test_sections_in_another_order_are_refused(tmp_path: Path) -> None:
    swapped = (
        "## Impact\nTime is lost.\n\n## Diagnosis\nLook at the loader.",
        "## Diagnosis\nLook.\n\n## Impact\nLost.",
    )
    refused(write_rule(tmp_path, swapped), "must come in the order")


def test_a_file_that_raises_on_import_names_its_line(tmp_path: Path) -> None:
    path = write_rule(tmp_path, ("RULE = Rule(", "1 / 0\nRULE = Rule("))
    line = path.read_text().splitlines().index("1 / 0") + 1
    refused(path, f"acme101_slow_loader.py:{line}: cannot be imported: ZeroDivisionError")


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    refused(write_rule(tmp_path, ("def check(", "def check((")), r"\.py:\d+: cannot be imported: SyntaxError")


def test_a_file_that_exits_is_refused_not_obeyed(tmp_path: Path) -> None:
    refused(write_rule(tmp_path, ("RULE = Rule(", "raise SystemExit(0)\nRULE = Rule(")), "SystemExit")


def test_a_missing_module_is_the_files_fault(tmp_path: Path) -> None:
    refused(write_rule(tmp_path, ("RULE = Rule(", "import acme_tools\nRULE = Rule(")), "No module named 'acme_tools'")


def test_a_file_name_that_is_no_rule_is_refused(tmp_path: Path) -> None:
    refused(write_rule(tmp_path, name="slow_loader.py"), "not a rule file name")


def test_helpers_tests_and_caches_beside_rules_are_left_alone(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    write_rule(rules)
    for name in ("_helper.py", "test_rules.py", "__init__.py", "conftest.py"):
        (rules / name).write_text("1 / 0")
    (rules / ".venv").mkdir()
    (rules / ".venv" / "site.py").write_text("1 / 0")
    assert [rule.rule.id for rule in added(tmp_path, rules)] == ["ACME101"]


def test_rules_come_in_order_of_number_and_from_subfolders(tmp_path: Path) -> None:
    for number, folder in ((1001, "ten"), (201, "two"), (101, "one")):
        name = f"acme{number}_slow_loader.py"
        write_rule(tmp_path / "rules" / folder, ("ACME101", f"ACME{number}"), name=name)
    assert [rule.rule.id for rule in added(tmp_path, tmp_path / "rules")] == ["ACME101", "ACME201", "ACME1001"]


def test_an_id_may_be_used_once_over_all_folders(tmp_path: Path) -> None:
    first, second = write_rule(tmp_path / "a"), write_rule(tmp_path / "b")
    with pytest.raises(RuleError, match="already taken") as caught:
        added(tmp_path, tmp_path / "a", tmp_path / "b")
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)


def test_a_built_in_rule_must_lie_in_its_familys_folder(tmp_path: Path) -> None:
    changes = (("ACME101", "DD402"), ("ACME-01", "RC-51"))
    path = write_rule(tmp_path / "dd5_skew", *changes, name="dd402_x.py")
    with pytest.raises(RuleError, match="belongs in a folder named dd4_"):
        load_rule(path, built_in=True)


def test_an_added_folder_without_rules_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no rule files there"):
        load_rules(tmp_path / "empty", [tmp_path / "empty"])
    with pytest.raises(UsageError, match="no such rules folder"):
        load_rules(tmp_path / "empty", [tmp_path / "missing"])


def test_a_single_file_may_be_added_and_is_known_to_be(tmp_path: Path) -> None:
    changes = (("ACME101", "DD101"), ("ACME-01", "RC-43"))
    write_rule(tmp_path / "a" / "dd1_input", *changes, name="dd101_slow_loader.py")
    rules = load_rules(tmp_path / "a", [write_rule(tmp_path / "b")])
    assert [(rule.rule.id, rule.built_in) for rule in rules] == [("ACME101", False), ("DD101", True)]


def test_explanations_must_name_rules_and_not_run_in_circles() -> None:
    a, b = loaded(id="DD101", explained_by=("DD102",)), loaded(id="DD102", explained_by=("DD101", "DD999"))
    problems = "\n".join(reference_problems([a, b]))
    assert "DD999, which is no rule" in problems
    assert "DD101 and DD102 explain each other" in problems


def test_the_built_in_rules_keep_the_contract() -> None:
    rules = load_rules(rules_folder())
    assert len(rules) >= 25
    assert reference_problems(rules) == []
