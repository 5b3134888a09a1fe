from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ddiag.reporters.json import schema
from tests.unit.cli.conftest import Run
from tests.unit.rulekit.making import write_rule


def diagnosis(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    assert [error.message for error in Draft202012Validator(schema()).iter_errors(document)] == []
    return document


def test_a_diagnosis_is_printed_and_a_report_is_written(run: Run, slow_input: Path) -> None:
    result = run("analyze", slow_input)
    assert result.code == 0
    assert "DEGRADED" in result.out
    assert "DO THIS FIRST" in result.out
    assert "Report: ddiag-report.html" in result.out
    assert result.err == ""
    page = Path("ddiag-report.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert sorted(path.name for path in Path().iterdir()) == ["ddiag-report.html"]


def test_a_healthy_job_exits_clean_whatever_the_gate(run: Run, sound: Path) -> None:
    result = run("analyze", sound, "--no-html", "--fail-on", "warning")
    assert (result.code, "HEALTHY" in result.out) == (0, True)
    assert not list(Path().iterdir())


@pytest.mark.parametrize(("gate", "code"), [("info", 1), ("warning", 1)])
def test_the_gate_decides_the_exit_code(run: Run, slow_input: Path, gate: str, code: int) -> None:
    assert run("analyze", slow_input, "--no-html", "--fail-on", gate).code == code


def test_json_on_stdout_is_alone_there(run: Run, slow_input: Path) -> None:
    result = run("analyze", slow_input, "--json", "-")
    document = diagnosis(result.out)
    assert document["verdict"]["primary"] == document["findings"][0]["rule"]
    assert document["verdict"]["primary"] in ("DD101", "DD102")
    assert document["coverage"]["ranks_seen"] == [0, 1]
    assert Path("ddiag-report.html").exists()


def test_every_finding_of_the_json_is_in_the_other_reports(run: Run, slow_input: Path) -> None:
    run("analyze", slow_input, "--json", "d.json", "--markdown", "d.md", "--html", "d.html")
    document = diagnosis(Path("d.json").read_text(encoding="utf-8"))
    for finding in document["findings"]:
        assert finding["rule"] in Path("d.md").read_text(encoding="utf-8")
        assert f'id="{finding["rule"]}' in Path("d.html").read_text(encoding="utf-8")


def test_markdown_on_stdout_is_alone_there(run: Run, slow_input: Path) -> None:
    assert run("analyze", slow_input, "--no-html", "--markdown", "-").out.startswith("## ddiag: degraded")


def test_two_reports_do_not_fit_into_one_place(run: Run, slow_input: Path) -> None:
    result = run("analyze", slow_input, "--json", "-", "--markdown", "-")
    assert (result.code, result.out) == (2, "")
    assert "same place" in result.err


def test_a_report_that_cannot_be_written_does_not_cost_the_diagnosis(run: Run, slow_input: Path) -> None:
    result = run("analyze", slow_input, "--html", "missing/folder/r.html")
    assert result.code == 2
    assert "DEGRADED" in result.out
    assert result.err == "Error: cannot write missing/folder/r.html: No such file or directory\n"


def test_an_old_report_survives_a_failed_write(run: Run, slow_input: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("d.json").write_text("old")
    monkeypatch.setattr("ddiag.cli.writing.Path.replace", _disk_full)
    assert run("analyze", slow_input, "--no-html", "--json", "d.json").code == 2
    assert Path("d.json").read_text() == "old"
    assert [path.name for path in Path().iterdir()] == ["d.json"]


def _disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_chosen_steps_are_the_ones_judged(run: Run, slow_input: Path) -> None:
    all_steps = diagnosis(run("analyze", slow_input, "--no-html", "--json", "-").out)["coverage"]["steps"]
    last = all_steps[-1]
    text = run("analyze", slow_input, "--no-html", "--steps", f"{last}:{last}").out
    assert "1 step of" in text


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("9000:9001", "--steps 9000:9001: none of these was recorded (the evidence has steps"),
        ("x", "'x' is no range of steps"),
        (":", "no range"),
        ("5:3", "ends before it begins"),
    ],
)
def test_steps_that_are_none_are_refused(run: Run, slow_input: Path, steps: str, words: str) -> None:
    result = run("analyze", slow_input, "--no-html", "--steps", steps)
    assert result.code == 2
    assert words in result.err


def test_thresholds_come_from_the_current_folder_or_the_named_file(run: Run, slow_input: Path) -> None:
    quiet = "[limits]\n" + "".join(f"{rule}.stall_share = 0.99\n" for rule in ("DD101", "DD102", "DD103"))
    rules = [f["rule"] for f in diagnosis(run("analyze", slow_input, "--no-html", "--json", "-").out)["findings"]]
    Path("ddiag.toml").write_text(quiet)
    here = diagnosis(run("analyze", slow_input, "--no-html", "--json", "-").out)
    assert {"DD101", "DD102"} & set(rules)
    assert not {"DD101", "DD102", "DD103"} & {f["rule"] for f in here["findings"]}
    Path("ddiag.toml").rename("team.toml")
    named = run("analyze", slow_input, "--no-html", "--json", "-", "--limits", "team.toml")
    assert diagnosis(named.out)["findings"] == here["findings"]


def test_a_wrong_threshold_is_told_before_anything_is_read(run: Run) -> None:
    Path("ddiag.toml").write_text("[limits]\nDD101.stal_share = 0.2")
    result = run("analyze", "no-such-file.json")
    assert result.code == 2
    assert "ddiag.toml: DD101 has no limit 'stal_share'; did you mean stall_share?" in result.err


def test_a_teams_own_rule_takes_part(run: Run, slow_input: Path, tmp_path: Path) -> None:
    write_rule(tmp_path / "rules")
    document = diagnosis(run("analyze", slow_input, "--no-html", "--json", "-", "--rules", tmp_path / "rules").out)
    assert "ACME101" in {finding["rule"] for finding in document["findings"]}


def test_a_teams_rule_that_fails_is_told_and_the_rest_goes_on(run: Run, slow_input: Path, tmp_path: Path) -> None:
    write_rule(tmp_path / "rules", ("wait = signals[InputWait]", "wait = 1 / 0"))
    result = run("analyze", slow_input, "--no-html", "--rules", tmp_path / "rules")
    assert result.code == 0
    assert "Warning: rule ACME101" in result.err
    assert "ZeroDivisionError" in result.out
    assert "DEGRADED" in result.out


def test_a_teams_rule_that_cannot_be_loaded_is_a_usage_error(run: Run, slow_input: Path, tmp_path: Path) -> None:
    path = write_rule(tmp_path / "rules", ("RULE = Rule(", "RULE = Rulle("))
    result = run("analyze", slow_input, "--rules", tmp_path / "rules")
    assert result.code == 2
    assert f"Error: {path}" in result.err
    assert "NameError" in result.err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.json", b""),
        ("empty.json.gz", b""),
        ("nothing.json.gz", gzip.compress(b"", mtime=0)),
        ("binary.json", bytes(range(256)) * 50),
        ("notes.json", b'{"a": 1}'),
        ("text.txt", b"hello"),
    ],
)
def test_evidence_that_is_none_is_one_clear_line(run: Run, name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    result = run("analyze", name)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert name in result.err


@pytest.mark.parametrize("place", ["missing.json", "missing/", "none*.json", "empty"])
def test_evidence_that_is_not_there_is_one_clear_line(run: Run, place: str) -> None:
    Path("empty").mkdir()
    result = run("analyze", place)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert place.rstrip("/") in result.err


def test_the_good_part_of_a_folder_is_used(run: Run, slow_input: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(slow_input, mixed)
    (mixed / "rank2.json.gz").write_bytes(b"")
    (mixed / "README.txt").write_text("see the wiki")
    result = run("analyze", mixed, "--no-html")
    assert result.code == 0
    assert "DEGRADED" in result.out
    assert "rank2.json.gz" in result.out


def test_a_named_file_that_cannot_be_used_is_warned_about(run: Run, slow_input: Path) -> None:
    Path("rank2.json.gz").write_bytes(b"")
    result = run("analyze", slow_input, "rank2.json.gz", "--no-html")
    assert result.code == 0
    assert "DEGRADED" in result.out
    assert "Warning: not used: rank2.json.gz: " in result.err


def test_nothing_to_read_is_usage(run: Run) -> None:
    result = run("analyze")
    assert result.code == 2
    assert "EVIDENCE" in result.err


def test_quiet_and_verbose_change_messages_only(run: Run, slow_input: Path) -> None:
    plain, loud = (run("analyze", slow_input, "--no-html", *option) for option in ((), ("--verbose",)))
    assert plain.out == loud.out
    assert plain.err == ""
    assert "kineto" in loud.err
