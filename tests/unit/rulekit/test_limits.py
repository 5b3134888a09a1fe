from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.errors import UsageError
from ddiag.rulekit import LoadedRule
from ddiag.rulekit.limits import apply_limits, read_limits
from ddiag.rulekit.loader import load_rule
from tests.unit.rulekit.making import write_rule


@pytest.fixture
def rule(tmp_path: Path) -> LoadedRule:
    return load_rule(write_rule(tmp_path / "rules"), built_in=False)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ddiag.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "[limits]\nACME101.stall_share = 0.2",
        "[limits.ACME101]\nstall_share = 0.2",
        '[limits]\n"ACME101.stall_share" = 0.2',
        "[limits]\nacme101 = { stall_share = 0.2 }",
    ],
)
def test_a_threshold_can_be_written_in_any_way_toml_has(tmp_path: Path, rule: LoadedRule, text: str) -> None:
    (changed,) = apply_limits([rule], read_limits(written(tmp_path, text)), "ddiag.toml")
    assert changed.limits.stall_share == 0.2
    assert changed.limits.most == rule.limits.most
    assert rule.limits.stall_share == 0.1  # the rule as loaded stays as it was


def test_an_int_serves_where_a_float_is_wanted(tmp_path: Path, rule: LoadedRule) -> None:
    (changed,) = apply_limits([rule], {"ACME101": {"stall_share": 1}}, "x")
    assert changed.limits.stall_share == 1.0
    assert isinstance(changed.limits.stall_share, float)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"ACME010": {"stall_share": 0.2}}, "ACME010, which is no rule; did you mean ACME101"),
        ({"ACME101": {"stal_share": 0.2}}, "no limit 'stal_share'; did you mean stall_share"),
        ({"ACME101": {"zzz": 0.2}}, "it has: stall_share, most, loud"),
        ({"ACME101": {"stall_share": "0.2"}}, "must be of type float, not str"),
        ({"ACME101": {"stall_share": True}}, "must be of type float, not bool"),
        ({"ACME101": {"stall_share": float("nan")}}, "finite"),
        ({"ACME101": {"most": 2.5}}, "must be of type int, not float"),
        ({"ACME101": {"most": True}}, "must be of type int, not bool"),
        ({"ACME101": {"loud": 1}}, "must be of type bool, not int"),
    ],
)
def test_a_wrong_threshold_is_refused_with_what_was_meant(
    rule: LoadedRule, overrides: dict[str, dict[str, object]], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        apply_limits([rule], overrides, "team.toml")
    assert str(caught.value).startswith("team.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limit]\nx = 1", r"unknown section \[limit\]; did you mean limits"),
        ("limits = 3", "must be a table"),
        ("[limits]\nACME101 = 3", "names no limit"),
        ("[limits\n", "not valid TOML"),
    ],
)
def test_a_faulty_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=words) as caught:
        read_limits(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_limits(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_limits(tmp_path / "binary.toml")


def test_a_file_without_limits_changes_nothing(tmp_path: Path, rule: LoadedRule) -> None:
    assert apply_limits([rule], read_limits(written(tmp_path, "")), "x") == (rule,)
