from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from tests.unit.cli.conftest import Run


def test_a_trace_for_perfetto_holds_all_ranks_and_the_findings(run: Run, slow_input: Path) -> None:
    result = run("export", slow_input, "--perfetto", "job.json")
    assert (result.code, result.out) == (0, "")
    assert "wrote job.json" in result.err
    document = json.loads(Path("job.json").read_text(encoding="utf-8"))
    processes = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert processes[0] == "ddiag findings"
    assert len(processes) == 3
    assert any(e.get("cat") == "ddiag" and "critical" in e["name"] for e in document["traceEvents"])


def test_a_gz_name_gives_the_same_trace_packed_and_always_the_same_bytes(run: Run, sound: Path) -> None:
    for name in ("a.json", "b.json.gz", "c.json.gz"):
        assert run("export", sound, "--perfetto", name, "--quiet").err == ""
    assert gzip.decompress(Path("b.json.gz").read_bytes()) == Path("a.json").read_bytes()
    assert Path("b.json.gz").read_bytes() == Path("c.json.gz").read_bytes()


def test_a_trace_on_stdout_is_alone_there(run: Run, sound: Path) -> None:
    assert json.loads(run("export", sound, "--perfetto", "-").out)["traceEvents"]


def test_every_table_with_rows_becomes_a_parquet_file(run: Run, sound: Path) -> None:
    result = run("export", sound, "--parquet", "tables/new")
    files = {path.stem for path in Path("tables/new").iterdir()}
    assert {"kernels", "ranks", "collectives", "steps_budget", "collectives_matched"} <= files
    assert f"wrote {len(files)} tables" in result.err
    assert pl.read_parquet("tables/new/kernels.parquet")["rank"].unique().sort().to_list() == [0, 1]


@pytest.mark.parametrize(("option", "target"), [("--perfetto", "no/such/folder.json"), ("--parquet", "file/x")])
def test_a_place_that_cannot_be_written_is_one_clear_line(run: Run, sound: Path, option: str, target: str) -> None:
    Path("file").write_text("in the way")
    result = run("export", sound, option, target)
    assert result.code == 2
    assert result.err.startswith("Error: cannot write")
    assert len(result.err.splitlines()) == 1
