"""Which trace is which rank, and which traces are one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddiag.ingest import load
from ddiag.ingest.facts import read_facts
from ddiag.model.run import Run
from tests.unit.ingest.kineto_text import collective_args, healthy, kernel, op, span, trace, write

HOUR_US = 3600 * 1_000_000


@pytest.fixture
def run_of(tmp_path: Path) -> Any:
    def run_of(**files: dict[str, Any]) -> Run:
        for name, content in files.items():
            write(tmp_path / f"{name}.json", content)
        return load([str(tmp_path)])

    return run_of


def ranks(run: Run) -> list[int]:
    return run.table("ranks")["rank"].to_list()


def test_content_says_the_rank_before_the_name(run_of: Any) -> None:
    run = run_of(rank7=healthy(0), rank3=healthy(1))
    assert ranks(run) == [0, 1]
    assert run.coverage.ranks_expected == (0, 1)
    assert run.coverage.ranks_missing == ()
    assert run.table("ranks")["rank_known"].to_list() == [True, True]


def test_the_name_says_the_rank_where_the_content_does_not(run_of: Any) -> None:
    run = run_of(rank0=healthy(None), rank11=healthy(None))
    assert ranks(run) == [0, 11]
    assert {entry.note for entry in run.coverage.inputs} == {"rank taken from the file name"}


@pytest.mark.parametrize(
    "info",
    [
        {"rank": 5, "world_size": 8}, {"rank": "5", "world_size": "8"}, '{"rank": 5, "world_size": 8}',
        "{'rank': 5, 'world_size': 8}",
    ],
    ids=["numbers", "text numbers", "JSON text", "Python text"],
)  # fmt: skip
def test_distributed_info_may_be_written_in_any_way(info: Any) -> None:
    facts = read_facts({"distributedInfo": info})
    assert (facts.rank, facts.world_size) == (5, 8)


@pytest.mark.parametrize(
    "info", [None, [], "nonsense", {"rank": -1}, {"rank": True}, {"rank": 9, "world_size": 8}, {"rank": {}}]
)
def test_an_impossible_rank_is_unknown(info: Any) -> None:
    assert read_facts({"distributedInfo": info}).rank is None


def test_a_call_in_a_group_of_all_ranks_says_the_rank(run_of: Any) -> None:
    args = collective_args(Rank=1)
    run = run_of(trace=trace(kernel("ncclDevKernel_AllReduce", 0, 5, **args), rank=None))
    assert ranks(run) == [1]
    assert run.table("ranks")["rank_known"].to_list() == [True]


def test_a_lone_trace_without_rank_is_rank_0_and_says_so(run_of: Any) -> None:
    run = run_of(trace=healthy(None))
    assert ranks(run) == [0]
    assert run.table("ranks")["rank_known"].to_list() == [False]
    assert run.coverage.ranks_seen == ()
    assert "does not say its rank" in run.coverage.notes[0]
    assert "rank3.json" in run.coverage.notes[0]


def test_several_traces_without_rank_are_kept_apart(run_of: Any) -> None:
    run = run_of(
        a=trace(op("x", 0, 5, tid=1), rank=None), b=trace(op("x", 0, 5, tid=2), rank=None), rank4=healthy(None)
    )
    assert ranks(run) == [4, -1, -2]
    assert "2 traces do not say their rank" in run.coverage.notes[0]


def test_profiler_cycles_of_a_rank_become_captures_in_time_order(run_of: Any) -> None:
    run = run_of(
        late=healthy(0, start=50_000),
        early=healthy(0, start=0),
        other=healthy(1, start=0),
        other_late=healthy(1, start=50_000),
    )
    captures = run.table("captures")
    assert captures.select("rank", "capture").rows() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert captures["source"].str.extract(r"(\w+)\.json$").to_list() == ["early", "late", "other", "other_late"]
    assert run.table("steps").height == 4
    assert run.table("collectives")["seq"].to_list() == [0, 1, 0, 1]


def test_ids_of_later_cycles_do_not_join_with_those_of_the_first(run_of: Any) -> None:
    run = run_of(a=healthy(0, start=0), b=healthy(0, start=50_000))
    launches = run.table("launches")
    assert launches["correlation"].n_unique() == launches.height
    joined = run.table("kernels").join(launches, on=["rank", "correlation"])
    assert joined.height == run.table("kernels").height
    assert (joined["start_ns"] - joined["start_ns_right"]).max() < 1_000_000


def test_two_traces_of_one_rank_at_the_same_time_are_rivals_and_one_is_named_as_left_out(run_of: Any) -> None:
    small = trace(op("x", 0, 500), rank=0)
    run = run_of(big=healthy(0), copy=small, rank1=healthy(1))
    assert run.table("ops")["name"].cast(str).is_in(["x"]).sum() == 0
    (left,) = [entry for entry in run.coverage.inputs if entry.note.startswith("left out")]
    assert left.path.endswith("copy.json")
    assert "a second trace of rank 0; big.json is used instead" in left.note
    assert any("left out: copy.json" in note for note in run.coverage.notes)


def test_of_rivals_the_one_that_covers_the_time_of_the_other_ranks_wins(run_of: Any) -> None:
    old = healthy(0, start=-100_000)
    old["traceEvents"] += [op("x", -100_000 + k, 1, tid=77) for k in range(500)]
    old["traceEvents"] = [{**e, "tid": 77} if e.get("cat") == "user_annotation" else e for e in old["traceEvents"]]
    run = run_of(old=old, new=healthy(0), rank1=healthy(1), rank2=healthy(2, world=2))
    assert "old.json" in next(note for note in run.coverage.notes if "left out" in note)


def test_traces_of_another_world_size_are_another_job(run_of: Any) -> None:
    run = run_of(a=healthy(0, 2), b=healthy(1, 2), c=healthy(0, 8))
    assert ranks(run) == [0, 1]
    (left,) = [entry for entry in run.coverage.inputs if entry.note.startswith("left out")]
    assert "its world size is not 2" in left.note


def test_a_run_of_another_day_is_another_job(run_of: Any) -> None:
    run = run_of(a=healthy(0, 4), b=healthy(1, 4), c=healthy(2, 4, start=30 * HOUR_US))
    assert ranks(run) == [0, 1]
    assert run.coverage.ranks_missing == (2, 3)
    (left,) = [entry for entry in run.coverage.inputs if entry.note.startswith("left out")]
    assert "another job" in left.note


def test_all_ranks_of_a_job_once_each_are_one_job_whatever_their_clocks_say(run_of: Any) -> None:
    run = run_of(a=healthy(0, 3), b=healthy(1, 3), c=healthy(2, 3, start=700 * HOUR_US))
    assert ranks(run) == [0, 1, 2]
    assert any("clocks of the ranks differ by 700 hours" in note for note in run.coverage.notes)


def test_a_cycle_of_the_same_processes_hours_later_is_kept(run_of: Any) -> None:
    run = run_of(a=healthy(0), b=healthy(1), c=healthy(0, start=8 * HOUR_US), d=healthy(1, start=8 * HOUR_US))
    assert run.table("captures").height == 4
    assert not [entry for entry in run.coverage.inputs if entry.note]


def test_hundreds_of_ranks_and_a_gap(run_of: Any) -> None:
    run = run_of(**{f"r{rank}": healthy(rank, 300) for rank in range(300) if rank != 17})
    assert len(run.coverage.ranks_seen) == 299
    assert run.coverage.ranks_missing == (17,)
    assert run.table("collectives").height == 299


def test_one_name_for_groups_of_different_members_becomes_two_names(run_of: Any) -> None:
    def member(rank: int, members: list[int]) -> dict[str, Any]:
        groups = [{"pg_name": "tp", "pg_desc": "tp", "pg_size": 2, "ranks": members}]
        info = {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": groups}
        args = collective_args(group="tp", **{"Process Group Ranks": str(members)})
        return trace(kernel("ncclDevKernel_AllReduce", 0, 5, **args), distributedInfo=info)

    run = run_of(a=member(0, [0, 1]), b=member(1, [0, 1]), c=member(2, [2, 3]), d=member(3, [2, 3]))
    assert run.table("groups").select("group", "ranks").rows() == [("tp[0-1]", [0, 1]), ("tp[2-3]", [2, 3])]
    assert run.table("collectives")["group"].to_list() == ["tp[0-1]"] * 2 + ["tp[2-3]"] * 2


def test_traces_without_date_are_said_not_to_be_comparable(run_of: Any) -> None:
    undated = trace({**span("cpu_op", "x", 0, 5), "ts": 100}, rank=1)
    assert "1 of 2 traces do not say when they were recorded" in run_of(a=healthy(0), b=undated).coverage.notes[0]


def test_progress_counts_every_file(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rank{rank}.json", healthy(rank, 3)) for rank in range(3)]
    seen: list[tuple[int, int, str]] = []
    load(paths, progress=lambda done, total, path: seen.append((done, total, path)))
    assert seen == [(1, 3, paths[0]), (2, 3, paths[1]), (3, 3, paths[2])]
