from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ddiag.analysis import derive
from ddiag.errors import InputError
from ddiag.ingest import load
from ddiag.model.run import Run
from ddiag.model.signals import Signals
from ddiag.reporters.perfetto import FINDINGS_PID, PerfettoReporter
from ddiag.rulekit.diagnosis import Diagnosis, conclude
from tests.builders import EPOCH_NS, RunBuilder
from tests.unit.reporters.diagnoses import LATE, NASTY, diagnosed
from tests.unit.rulekit.making import finding


def a_run(*ranks: int) -> Run:
    """Two steps per rank with an operator, a kernel, a copy, a collective and Python frames."""
    builder = RunBuilder(world_size=len(ranks))
    for rank in ranks:
        builder.rank(rank)
        for step in (1, 2):
            at = step * 100.0
            builder.step(step, at, 100.0).op("aten::mm", at + 1, 2, external_id=7)
            builder.python("train.py(3): step", at + 1, 90)
            builder.launch_kernel("gemm", at + 1.5, at + 5, 20.000123)
            builder.copy("h2d", at + 30, 3, bytes=4096, pinned=False, launch_ms=at + 29)
            builder.collective("all_reduce", at + 40 + rank, 10 - rank, group_size=len(ranks))
            builder.op("autograd", at + 50, 5, tid=9)
    return builder.build()


def written(run: Run, *found: Any, offsets: dict[int, int] | None = None, **options: Any) -> dict[str, Any]:
    diagnosis, _ = diagnosed(*found)
    text = PerfettoReporter(offset_ns=offsets or {}, **options).render(diagnosis, derive(run), run)
    document: dict[str, Any] = json.loads(text)
    return document


def slices(document: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if all(e.get(key) == value for key, value in wanted.items())]


def test_every_rank_is_a_process_named_with_its_host() -> None:
    document = written(a_run(0, 1))
    names = {e["pid"]: e["args"]["name"] for e in slices(document, name="process_name")}
    assert list(names.values()) == ["ddiag findings", "rank 0 (host0)", "rank 1 (host0)"]


def test_lanes_are_named_and_in_reading_order() -> None:
    document = written(a_run(0))
    lanes = {e["tid"]: e["args"]["name"] for e in slices(document, name="thread_name", pid=FINDINGS_PID + 1)}
    assert [lanes[tid] for tid in sorted(lanes)] == [
        "ddiag findings",
        "steps",
        "thread 1 (training)",
        "thread 9",
        "device 0 stream 20",
        "device 0 stream 7",
    ]


def test_times_are_kept_to_the_nanosecond() -> None:
    document = written(a_run(0))
    start = document["baseTimeNanoseconds"]
    gemm = slices(document, name="gemm")[0]
    assert start + round(gemm["ts"] * 1000) == EPOCH_NS + 105_000_000
    assert gemm["dur"] == 20000.123


def test_ranks_are_put_on_one_clock() -> None:
    document = written(a_run(0, 1), offsets={1: 3_000_000})
    first, second = (slices(document, name="gemm", pid=FINDINGS_PID + 1 + rank)[0]["ts"] for rank in (0, 1))
    assert first - second == pytest.approx(3000.0)
    assert min(e["ts"] for e in document["traceEvents"]) >= 0


def test_spans_of_a_lane_nest_as_perfetto_demands() -> None:
    tracks = defaultdict(list)
    for event in slices(written(a_run(0, 1), LATE), ph="X"):
        tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for spans in tracks.values():
        ends: list[float] = []
        for start, negative in sorted(spans):
            while ends and ends[-1] <= start + 1e-3:
                ends.pop()
            assert not ends or start - negative <= ends[-1] + 1e-3
            ends.append(start - negative)


def test_findings_are_on_their_own_track_and_on_the_culprits() -> None:
    document = written(a_run(0, 3), LATE)
    (on_track,) = slices(document, ph="X", pid=FINDINGS_PID)
    (on_culprit,) = slices(document, ph="i")
    assert on_track["name"] == on_culprit["name"] == "DD501 critical: rank 3 arrives last in 198 of 200 collectives"
    assert on_track["args"]["fix"] == list(LATE.fix)
    assert on_culprit["pid"] == FINDINGS_PID + 2  # rank 3 is the second of two


def test_waiting_for_a_rank_is_drawn_where_it_happens() -> None:
    waits = slices(written(a_run(0, 1)), name="waiting in all_reduce")
    assert {(e["pid"], round(e["dur"])) for e in waits} == {(FINDINGS_PID + 1, 1000)}


def test_python_frames_are_left_out_and_that_is_said() -> None:
    document = written(a_run(0))
    assert not slices(document, name="train.py(3): step")
    assert document["otherData"]["left_out"] == "2 Python frames"


def test_too_many_spans_lose_the_shortest() -> None:
    document = written(a_run(0), most_spans=4)
    assert "the 14 shortest of 18 spans" in document["otherData"]["left_out"]
    assert len(slices(document, name="gemm")) == 2
    assert not slices(document, name="aten::mm")


def test_arrows_lead_from_calls_to_the_work_they_launched() -> None:
    document = written(a_run(0))
    starts, ends = ({e["id"]: e for e in slices(document, ph=phase)} for phase in ("s", "f"))
    assert starts.keys() == ends.keys()
    assert len(starts) == 6  # a kernel, a copy and a collective in each of two steps
    at = {e["ts"]: e for e in slices(document, ph="X", cat="cuda_runtime")}
    assert all(start["ts"] in at for start in starts.values())
    assert all(ends[key]["ts"] >= start["ts"] for key, start in starts.items())


def test_memory_is_a_counter() -> None:
    diagnosis, signals = diagnosed()
    document = json.loads(PerfettoReporter().render(diagnosis, signals, a_run(0)))
    counted = slices(document, ph="C")
    assert {e["name"].split(" ")[0] for e in counted} == {"allocated", "reserved"}
    assert all(e["args"]["MiB"] > 0 for e in counted)


def test_hostile_names_are_only_text() -> None:
    run = RunBuilder().step(1, 0, 10).op('"},{' + NASTY + "\\", 1, 2).build()
    document = written(run, finding(title=NASTY))
    assert '"},{' + NASTY + "\\" in {e["name"] for e in document["traceEvents"]}


def test_nothing_recorded_is_an_empty_trace() -> None:
    signals = Signals()
    text = PerfettoReporter().render(conclude(signals, Run({}).coverage, []), signals, Run({}))
    assert json.loads(text)["traceEvents"] == []


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    """It is a valid trace: our own reader finds the same kernels, copies, calls and steps."""
    run = a_run(0)
    diagnosis: Diagnosis = diagnosed()[0]
    path = tmp_path / "rank0.json"
    text = PerfettoReporter().render(diagnosis, derive(run), run)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="written by `ddiag export --perfetto`"):
        load([str(path)])
    document = json.loads(text)
    del document["otherData"]
    path.write_text(json.dumps(document), encoding="utf-8")
    again = load([str(path)])
    for name, columns in {
        "kernels": ["stream", "name", "kind", "start_ns", "end_ns", "correlation"],
        "copies": ["stream", "direction", "pinned", "bytes", "start_ns", "end_ns"],
        "launches": ["name", "start_ns", "end_ns", "correlation"],
        "steps": ["step", "start_ns", "end_ns"],
    }.items():
        before, after = (
            r.table(name).select(pl.col(columns)).with_columns(pl.col(pl.Categorical).cast(pl.String)).sort("start_ns")
            for r in (run, again)
        )
        assert after.equals(before), f"{name}: {after} instead of {before}"
