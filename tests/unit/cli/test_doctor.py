"""``ddiag doctor`` on this machine, and on the reports of several."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.conftest import Run


def test_this_node_is_looked_at_in_words(run: Run) -> None:
    result = run("doctor")
    assert result.code == 0
    assert "shared memory" in result.out
    assert "fine" in result.out.splitlines()[0]


def test_json_is_only_json_and_is_read_back(run: Run) -> None:
    result = run("doctor", "--json", "-")
    assert json.loads(result.out)["ddiag_node"] == 1
    Path("a.json").write_text(result.out)
    again = run("doctor", "a.json")
    assert again.code == 0
    assert "open files" in again.out


def test_the_name_of_the_file_may_hold_the_nodes_name(run: Run) -> None:
    result = run("doctor", "--json", "node-{host}.json")
    (written,) = Path().glob("node-*.json")
    assert "{" not in written.name
    assert f"wrote {written}" in result.err


def test_nodes_are_compared_and_the_odd_one_named(run: Run) -> None:
    report = json.loads(run("doctor", "--json", "-").out)
    for host in ("gn01", "gn02", "gn03"):
        facts = [one for one in report["facts"] if host != "gn03" or one["key"] != "limit.nofile"]
        odd = [{"key": "limit.nofile", "value": 77}] if host == "gn03" else []
        Path(f"{host}.json").write_text(json.dumps({**report, "host": host, "facts": facts + odd}))
    result = run("doctor", "gn01.json", "gn02.json", "gn03.json")
    assert "1 of 3 nodes differ from the others" in result.out
    assert any("gn03" in line and "limit.nofile" in line and "77" in line for line in result.out.splitlines())


def test_equal_nodes_have_no_difference(run: Run) -> None:
    text = run("doctor", "--json", "-").out
    Path("a.json").write_text(text)
    Path("b.json").write_text(text)
    assert "no difference that matters" in run("doctor", "a.json", "b.json").out


def test_what_is_no_report_is_one_line(run: Run) -> None:
    Path("x.json").write_text("{}")
    result = run("doctor", "x.json")
    assert (result.code, result.out) == (2, "")
    assert "not a report of ddiag doctor" in result.err
    assert run("doctor", "missing.json").err.count("\n") == 1


def test_the_exit_code_follows_fail_on(run: Run) -> None:
    report = json.loads(run("doctor", "--json", "-").out)
    facts = [one for one in report["facts"] if not one["key"].startswith("shm.")]
    small = [{"key": "shm.size_bytes", "value": 64 << 20}, {"key": "shm.free_bytes", "value": 64 << 20}]
    Path("a.json").write_text(json.dumps({**report, "facts": facts + small}))
    assert run("doctor", "a.json").code == 0
    assert run("doctor", "a.json", "--fail-on", "fail").code == 1


def test_a_report_is_evidence_for_analyze_as_well(run: Run) -> None:
    Path("a.json").write_text(run("doctor", "--json", "-").out)
    result = run("analyze", "a.json", "--no-html", "--json", "-")
    (entry,) = json.loads(result.out)["coverage"]["inputs"]
    assert entry["kind"] == "doctor"
