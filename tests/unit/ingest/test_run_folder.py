"""Recordings are read whole, cut short, wrapped, damaged, and of other versions; nothing is invented or hidden."""

from __future__ import annotations

import shutil
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from ddiag.errors import InputError
from ddiag.ingest import load
from ddiag.schema.folder import read_manifest, write_manifest
from ddiag.schema.ring import HEADER_BYTES, RECORD_BYTES
from tests.recordings import MS, WALL_NS, Plan, files_of, healthy, write_process, write_run

STEP_RECORDS = 6
"""Of one step of a plan: four phases and two buckets."""


def test_what_was_written_is_in_the_tables(tmp_path: Path) -> None:
    run = load([str(write_run(tmp_path / "run", *healthy()))])
    assert run.recorded
    assert run.table("ranks")["rank"].to_list() == [0, 1]
    assert run.table("steps").height == 24
    assert run.table("phases").height == 2 * 12 * 4
    calls = run.table("collectives")
    assert calls.height == 2 * 12 * 2
    assert set(calls["label"].to_list()) == {"ddp0/bucket0", "ddp0/bucket1"}
    assert calls["bytes_in"].unique().to_list() == [8 << 20]
    assert calls["group_size"].unique().to_list() == [2]
    assert calls["seq"].max() == 23
    assert run.table("groups")["ranks"].to_list() == [[0, 1]]


def test_times_are_unix_time(tmp_path: Path) -> None:
    run = load([str(write_run(tmp_path / "run", *healthy()))])
    first = run.table("steps").sort("start_ns").row(0, named=True)
    assert first["start_ns"] == WALL_NS + MS
    assert run.table("memory")["ts_ns"].to_list() == run.table("step_summaries")["end_ns"].to_list()


def test_ranks_of_one_host_share_its_clock_although_their_wall_clocks_were_read_apart(tmp_path: Path) -> None:
    plans = (Plan(rank=0), Plan(rank=1, wall_ns=WALL_NS + 3 * MS))
    steps = load([str(write_run(tmp_path / "run", *plans))]).table("steps")
    starts = [steps.filter(pl.col("rank") == rank)["start_ns"].to_list() for rank in (0, 1)]
    assert starts[0] == starts[1]


def test_ranks_of_other_hosts_keep_their_own_clock(tmp_path: Path) -> None:
    other = Plan(rank=1, mono_ns=77_000_000_000, wall_ns=WALL_NS + 3 * MS)
    steps = load([str(write_run(tmp_path / "run", Plan(rank=0), other))]).table("steps")
    starts = [steps.filter(pl.col("rank") == rank)["start_ns"].to_list() for rank in (0, 1)]
    assert {b - a for a, b in zip(*starts, strict=True)} == {3 * MS}


@pytest.mark.parametrize("how", ["ring", "folder", "zip", "parent"])
def test_it_is_found_however_it_is_given(tmp_path: Path, how: str) -> None:
    run = write_run(tmp_path / "runs" / "job", *healthy())
    given = {
        "ring": files_of(run, Plan()).ring,
        "folder": run / "ranks" / "a0",
        "parent": tmp_path,
        "zip": tmp_path / "a.zip",
    }
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in run.rglob("*.*"):
            archive.write(path, f"job/{path.relative_to(run)}")
    if how != "zip":
        (tmp_path / "a.zip").unlink()
    found = load([str(given[how])])
    assert found.table("ranks").height == (1 if how == "ring" else 2)
    assert found.table("collectives")["label"].null_count() == 0, "the names beside it are read as well"


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("off", [-3, -1, 0, 1, 64])
def test_a_ring_cut_anywhere_reads_up_to_the_cut(tmp_path: Path, off: int, *, closed: bool) -> None:
    plan = Plan(world=1, closed=closed)
    files = write_process(write_run(tmp_path / "run", ended=False), plan)
    whole = files.ring.read_bytes()
    for record in (0, 1, 5, 40, plan.steps * STEP_RECORDS):
        size = HEADER_BYTES + record * RECORD_BYTES + off
        files.ring.write_bytes(whole[:size])
        run = load([str(tmp_path / "run")])
        seen = run.table("phases").height + run.table("collectives").height
        assert seen == max(0, min((size - HEADER_BYTES) // RECORD_BYTES, plan.steps * STEP_RECORDS))
        assert run.table("steps").height == plan.steps, "summaries do not depend on the ring"


@pytest.mark.parametrize("off", [-100, -1, 0, 1, 100])
def test_summaries_cut_anywhere_lose_only_what_is_cut(tmp_path: Path, off: int) -> None:
    from ddiag.schema import steps as layout

    files = write_process(write_run(tmp_path / "run"), Plan(world=1))
    whole = files.steps.read_bytes()
    for record in range(1, 12):
        size = layout.HEADER_BYTES + record * layout.RECORD_BYTES + off
        files.steps.write_bytes(whole[:size])
        run = load([str(tmp_path / "run")])
        kept = (size - layout.HEADER_BYTES) // layout.RECORD_BYTES
        assert run.table("step_summaries").height == kept
        told = any("not written whole" in one.note for one in run.coverage.inputs)
        assert told == bool((size - layout.HEADER_BYTES) % layout.RECORD_BYTES)


def test_a_wrapped_ring_keeps_the_newest_and_says_so(tmp_path: Path) -> None:
    run = load([str(write_run(tmp_path / "run", *healthy(steps=200, capacity=100)))])
    calls = run.table("collectives")
    assert run.table("steps").height == 400
    assert calls["seq"].max() == 399
    assert calls.filter(pl.col("rank") == 0).height + run.table("phases").filter(pl.col("rank") == 0).height == 100
    assert min(run.coverage.steps) > 180
    assert any("earlier steps are known by their summaries" in note for note in run.coverage.notes)
    begin = run.table("captures")["start_ns"][0]
    assert (calls["enqueue_ns"] >= begin).all()


def test_slots_that_make_no_sense_are_left_out_and_counted(tmp_path: Path) -> None:
    files = write_process(write_run(tmp_path / "run"), Plan(world=1))
    data = bytearray(files.ring.read_bytes())
    struct.pack_into("<Q", data, HEADER_BYTES + 3 * RECORD_BYTES, 999)  # does not belong into this slot
    struct.pack_into("<Q", data, HEADER_BYTES + 4 * RECORD_BYTES, 0)  # was being written
    struct.pack_into("<I", data, HEADER_BYTES + 5 * RECORD_BYTES + 104, 17)  # no such state
    files.ring.write_bytes(data)
    run = load([str(tmp_path / "run")])
    assert run.table("phases").height + run.table("collectives").height == 12 * STEP_RECORDS - 3
    assert run.coverage.dropped_records == 3
    assert "3 record(s)" in run.coverage.inputs[0].note


def test_a_call_that_never_ended_has_no_end(tmp_path: Path) -> None:
    files = write_process(write_run(tmp_path / "run", ended=False), Plan(world=1, closed=False))
    data = bytearray(files.ring.read_bytes())
    last = HEADER_BYTES + (12 * STEP_RECORDS - 2) * RECORD_BYTES
    struct.pack_into("<q", data, last + 64, 0)
    struct.pack_into("<I", data, last + 104, 2)
    files.ring.write_bytes(data)
    run = load([str(tmp_path / "run")])
    calls = run.table("collectives").sort("enqueue_ns")
    assert calls["end_ns"].null_count() == 1
    assert calls["end_ns"][-1] is None
    assert "still running, or killed" in run.coverage.inputs[0].note


def test_a_newer_format_is_refused_with_the_reason(tmp_path: Path) -> None:
    files = write_process(write_run(tmp_path / "run"), Plan(world=1))
    for path in (files.ring, files.steps):
        data = bytearray(path.read_bytes())
        struct.pack_into("<I", data, 8, 99)
        path.write_bytes(data)
    with pytest.raises(InputError, match="format 99, this ddiag reads up to 1: use a newer ddiag"):
        load([str(tmp_path / "run")])


def test_one_rank_of_a_newer_format_does_not_hide_the_others(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *healthy())
    files = files_of(run, Plan(rank=1))
    for path in (files.ring, files.steps):
        path.write_bytes(path.read_bytes()[:8] + struct.pack("<I", 99) + path.read_bytes()[12:])
    found = load([str(run)])
    assert found.coverage.ranks_seen == (0,)
    assert found.coverage.ranks_missing == (1,)
    assert any("format 99" in why for _, why in found.coverage.unreadable)


@pytest.mark.parametrize("missing", [".names", ".steps", ".facts.jsonl", ".ring"])
def test_any_file_of_a_process_may_be_missing(tmp_path: Path, missing: str) -> None:
    files = write_process(write_run(tmp_path / "run"), Plan(world=1))
    files.ring.with_suffix("").with_name(files.ring.stem + missing).unlink()
    run = load([str(tmp_path / "run")])
    assert run.table("steps").height == (0 if missing == ".steps" else 12)
    if missing == ".names":
        assert run.table("collectives")["label"].null_count() == 24
    if missing in (".names", ".steps"):
        assert missing in run.coverage.inputs[0].note


def test_the_attempt_that_got_somewhere_is_analysed_and_the_other_named(tmp_path: Path) -> None:
    first, second = healthy(steps=30), healthy(attempt=1, steps=8, pid=500)
    run = load([str(write_run(tmp_path / "run", *first, *second))])
    assert run.table("steps").height == 16
    assert any("attempt 1 is analysed (8 steps), not attempt 0 (30 steps)" in note for note in run.coverage.notes)
    failed = healthy(attempt=2, steps=1, pid=900)
    run = load([str(write_run(tmp_path / "again", *first, *failed))])
    assert run.table("steps").height == 60


def test_folders_of_two_nodes_are_one_job(tmp_path: Path) -> None:
    write_run(tmp_path / "nodes" / "a", *healthy(4)[:2])
    write_run(tmp_path / "nodes" / "b", *healthy(4)[2:])
    assert load([str(tmp_path / "nodes")]).coverage.ranks_seen == (0, 1, 2, 3)


def test_of_several_jobs_the_newest_is_analysed_and_the_others_named(tmp_path: Path) -> None:
    old = [replace(plan, wall_ns=plan.wall_ns - 3600 * 10**9) for plan in healthy(steps=20)]
    write_run(tmp_path / "runs" / "old", *old)
    write_run(tmp_path / "runs" / "new", *healthy(steps=7))
    run = load([str(tmp_path / "runs")])
    assert run.table("steps").height == 14
    assert any("several recordings" in note and "old" in note for note in run.coverage.notes)


def test_a_run_in_which_nobody_trained_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no process of this run has trained yet"):
        load([str(write_run(tmp_path / "run"))])


def test_a_damaged_manifest_costs_only_what_it_says(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *healthy())
    (run / "run.json").write_text('{"format_version": 1, "na')
    found = load([str(run)])
    assert found.table("steps").height == 24
    assert any("not JSON" in note for note in found.coverage.notes)


def test_what_else_lies_in_the_folder_is_no_trouble(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *healthy())
    (run / "bootstrap").mkdir()
    (run / "bootstrap" / "sitecustomize.py").write_text("pass")
    (run / "report.html").write_text("<html>")
    shutil.copy(run / "run.json", run / "diagnosis.json")
    (run / "analysis.log").touch()
    found = load([str(run)])
    assert not found.coverage.unreadable
    assert not any("skipped" in note for note in found.coverage.notes)


def test_a_folder_without_run_json_and_with_notes_of_others_is_still_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *healthy())
    (run / "run.json").unlink()
    (run / "notes.txt").write_text("mine")
    found = load([str(run)])
    assert found.coverage.ranks_seen == (0, 1)
    assert any("notes.txt" in note for note in found.coverage.notes)


def test_a_job_that_failed_is_said_to_have_failed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, Plan())
    assert not load([str(folder)]).coverage.ending
    write_manifest(folder, replace(read_manifest(folder), exit_code=3))
    failed = load([str(folder)]).coverage
    assert failed.ending == "failed with exit code 3"
    assert not [note for note in failed.notes if "exit code" in note], "no gap in the evidence"
    write_manifest(folder, replace(read_manifest(folder), exit_code=143, asked_to_end="SIGTERM"))
    assert load([str(folder)]).coverage.ending == "somebody ended the job with SIGTERM (exit code 143)"
