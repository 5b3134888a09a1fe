from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from ddiag.cli.run_tables import DERIVED
from ddiag.model.tables import TABLES
from tests.unit.cli.conftest import Run


def test_facts_can_be_asked_for_in_sql(run: Run, sound: Path) -> None:
    result = run(
        "query", sound, "SELECT rank, count(*) AS n FROM kernels GROUP BY rank ORDER BY rank", "--format", "json"
    )
    rows = json.loads(result.out)
    assert [row["rank"] for row in rows] == [0, 1]
    assert all(row["n"] > 0 for row in rows)
    assert (result.code, result.err) == (0, "")


def test_derived_tables_are_there_too(run: Run, slow_input: Path) -> None:
    sql = "SELECT rank, sum(input_ms) AS input_ms FROM steps_budget WHERE steady GROUP BY rank ORDER BY rank"
    rows = list(csv.DictReader(io.StringIO(run("query", slow_input, sql, "--format", "csv").out)))
    assert [row["rank"] for row in rows] == ["0", "1"]
    assert all(float(row["input_ms"]) > 10 for row in rows)


def test_names_match_by_pattern(run: Run, sound: Path) -> None:
    sql = "SELECT count(*) AS n FROM kernels WHERE name LIKE '%nccl%'"
    assert json.loads(run("query", sound, sql, "--format", "json").out)[0]["n"] > 0


def test_lists_survive_csv(run: Run, sound: Path) -> None:
    text = run("query", sound, "SELECT ranks FROM groups", "--format", "csv").out
    assert json.loads(next(csv.DictReader(io.StringIO(text)))["ranks"]) == [0, 1]


def test_a_table_is_cut_and_says_of_how_many(run: Run, sound: Path) -> None:
    text = run("query", sound, "SELECT name, start_ns FROM kernels", "--rows", "2").out
    assert text.splitlines()[0].split() == ["name", "start_ns"]
    assert text.splitlines()[-1].startswith("2 of ")
    assert len(text.splitlines()) == 5


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT nme FROM kernels", 'unable to find column "nme"'),
        ("SELECT * FROM kernel", "no table 'kernel'; did you mean kernels?"),
        ("SELECT * FROM zzz", "there are ranks, captures"),
        ("SELEC 1", "sql parser error"),
        ("", "statement"),
        ("SELECT * FROM memory_timeline, zzz", ""),
    ],
)
def test_a_faulty_statement_is_one_clear_line(run: Run, sound: Path, sql: str, words: str) -> None:
    result = run("query", sound, sql)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: SQL: ")
    assert words in result.err
    assert len(result.err.splitlines()) == 1


def test_a_derived_table_the_evidence_lacks_is_told_apart_from_a_typing_error(run: Run, sound: Path) -> None:
    result = run("query", sound, "SELECT * FROM shard_units")
    assert result.code == 2
    assert "the evidence of this run does not give shard_units" in result.err


def test_all_tables_are_described_without_a_run(run: Run) -> None:
    result = run("query", "--tables")
    assert result.code == 0
    for name in (*TABLES, *DERIVED):
        assert f"\n{name}\n" in f"\n{result.out}"
    assert "bytes  amount" in result.out
    for derived in DERIVED.values():
        assert derived.meaning, f"{derived} has no docstring"


def test_with_a_run_rows_and_derived_columns_are_told(run: Run, sound: Path) -> None:
    text = run("query", sound, "--tables").out
    assert "kernels (" in text
    assert "shard_units (not in this evidence)" in text
    assert any(line.split() == ["step_ms", "Float64", "ms"] for line in text.splitlines())


@pytest.mark.parametrize(
    "sql", ["DROP TABLE steps", "DELETE FROM steps", "CREATE TABLE x AS SELECT 1", "TRUNCATE TABLE steps"]
)
def test_a_statement_that_would_change_something_is_refused(run: Run, sound: Path, sql: str) -> None:
    result = run("query", sound, sql)
    assert (result.code, result.out) == (2, "")
    assert "only SELECT" in result.err


def test_a_statement_may_begin_with_a_comment_or_with(run: Run, sound: Path) -> None:
    sql = "\n-- steps of all ranks\nWITH s AS (SELECT * FROM steps) SELECT count(*) AS n FROM s"
    assert run("query", sound, sql).code == 0
