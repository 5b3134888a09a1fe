"""Which rank a dump is of, and what many dumps are together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ddiag.ingest.flight_rank import host_of
from tests.unit.ingest.flight_dumps import NS, dump, entry, flight, read, write

WORLD = {"0": ("default_pg", "[0, 1, 2, 3]")}


def _pair(first: int, second: int) -> dict[str, tuple[str, str]]:
    return WORLD | {"5": ("TP", f"[{first}, {second}]")}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_3", 3),
        ("_dump_3", 3),
        ("nccl_trace_rank_3.json", 3),
        ("fr-gpu17a-3", 3),
        ("node12_3.pkl.gz", 3),
        ("3", 3),
        ("3.pickle", 3),
        ("rank3/dump.pkl", 3),
        ("trace_3_of_4_1790000000", 3),
    ],
)
def test_the_rank_is_found_in_any_name(name: str, rank: int, tmp_path: Path) -> None:
    path = write(tmp_path, dump([entry()]), name.removesuffix(".gz"))
    assert flight(read(path))["rank"].to_list() == [rank]


@pytest.mark.parametrize(
    "made",
    [
        dump([entry()], rank=2),
        dump([entry()], rank="2"),
        dump([entry()], WORLD | {"5": ("TP", "[2, 3]"), "9": ("DP", "[0, 2]")}),
        dump([entry(0, "nccl:send 1->0", process_group=("5", "PP"))], WORLD | {"5": ("PP", "[0, 2]")}),
        dump([entry(0, "nccl:recv 2<-0")]),
        dump([entry()], nccl_comm_state={"0xab": {"rank": "2", "nranks": "4"}, "0xcd": {"rank": "0", "nranks": "2"}}),
    ],
    ids=["rank", "rank as text", "in all groups", "sender in a group", "receiver", "communicator"],
)
def test_the_content_decides_before_the_name(made: Any, tmp_path: Path) -> None:
    assert flight(read(write(tmp_path, made, "nccl_trace_rank_1")))["rank"].to_list() == [2]


def test_a_number_that_no_member_has_is_not_the_rank(tmp_path: Path) -> None:
    run = read(write(tmp_path, dump([entry()], _pair(2, 3)), "job_77_node_2"), write(tmp_path, dump([entry()]), "r0"))
    assert sorted(flight(run)["rank"]) == [0, 2]


def test_an_unknown_rank_is_settled_when_one_place_is_left(tmp_path: Path) -> None:
    others = [write(tmp_path, dump([entry()]), f"nccl_trace_rank_{rank}") for rank in (0, 1, 3)]
    run = read(*others, write(tmp_path, dump([entry()]), "last"))
    assert sorted(flight(run)["rank"]) == [0, 1, 2, 3]
    (found,) = [one for one in run.coverage.inputs if one.path.endswith("last")]
    assert "taken as rank 2" in found.note


def test_a_rank_that_stays_unknown_is_said_and_not_guessed(tmp_path: Path) -> None:
    run = read(write(tmp_path, dump([entry()]), "nccl_trace_rank_0"), write(tmp_path, dump([entry()]), "last"))
    assert flight(run)["rank"].to_list() == [0]
    assert "put the rank at the end of the file's name" in run.coverage.inputs[1].note


def test_of_several_dumps_of_a_rank_the_newest_counts(tmp_path: Path) -> None:
    old = write(tmp_path, dump([entry(0), entry(1)]), "attempt0/nccl_trace_rank_1")
    new = write(tmp_path, dump([entry(0, time_created_ns=NS + 10**12)]), "attempt1/nccl_trace_rank_1")
    run = read(old, new)
    assert flight(run).height == 1
    assert "newer dump of rank 1" in run.coverage.inputs[0].note


def test_a_dump_as_pickle_and_json_counts_once_and_keeps_its_stacks(tmp_path: Path) -> None:
    bare = dump([entry(0, frames=None)])
    run = read(write(tmp_path, bare, "nccl_trace_rank_0.json"), write(tmp_path, dump([entry()]), "nccl_trace_rank_0"))
    assert flight(run)["frame"].to_list() == ["step (/job/train.py:41)"]


def test_a_name_that_several_groups_share_is_made_different(tmp_path: Path) -> None:
    mine = {"process_group": ("5", "TP"), "pg_id": 1}
    paths = [
        write(tmp_path, dump([entry(0), entry(1, **mine)], _pair(*pair)), f"nccl_trace_rank_{rank}")
        for pair in ((0, 1), (2, 3))
        for rank in pair
    ]
    run = read(*paths)
    found = flight(run).group_by("group").agg(pl.col("rank").sort()).sort("group").rows()
    assert found == [("0", [0, 1, 2, 3]), ("5[0-1]", [0, 1]), ("5[2-3]", [2, 3])]
    known = run.tables["flight_status"].filter(pl.col("group") == "5[2-3]")
    assert known.select("rank", "ranks").rows() == [(2, [2, 3]), (3, [2, 3])]


def test_strided_groups_of_one_name_stay_apart(tmp_path: Path) -> None:
    wide = {"0": ("default_pg", str(list(range(16))))}
    even, odd = str(list(range(0, 16, 2))), str(list(range(1, 16, 2)))
    mine = {"process_group": ("5", "DP"), "pg_id": 1}
    run = read(*(
        write(tmp_path, dump([entry(0, **mine)], wide | {"5": ("DP", members)}), f"nccl_trace_rank_{rank}")
        for rank, members in ((0, even), (1, odd), (14, even), (15, odd))
    ))  # fmt: skip
    assert dict(flight(run).select("rank", "group").iter_rows()) == {
        0: "5[0…14]",
        14: "5[0…14]",
        1: "5[1…15]",
        15: "5[1…15]",
    }


def test_members_that_a_cut_off_dump_lost_come_from_the_others(tmp_path: Path) -> None:
    lost = dump([entry(0)]) | {"pg_config": {}}
    run = read(write(tmp_path, lost, "nccl_trace_rank_0"), write(tmp_path, dump([entry(0)]), "nccl_trace_rank_1"))
    assert run.tables["flight_status"]["ranks"].to_list() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("nccl_trace_gpu-a17_rank_3", "gpu-a17"),
        ("node12.cluster_5.pkl", "node12.cluster"),
        ("fr_trace_h100-042_7", "h100-042"),
        ("nccl_trace_rank_3", None),
        ("comm_lib_trace_rank_3", None),
        ("rank12.json", None),
        ("attempt2_rank_3", None),
        ("_dump_4", None),
        ("17", None),
    ],
)
def test_a_host_in_the_name_is_known(name: str, host: str | None) -> None:
    assert host_of(name) == host
