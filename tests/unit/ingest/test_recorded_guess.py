"""Ranks whose calls were not recorded when they hung: their stacks tell what they wait in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ddiag import ingest
from ddiag.ingest.recorded_guess import waits_in
from tests.captures import call, group, late, rank, stack, write

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
BACKWARD = "_engine_run_backward (/venv/lib/python3.11/site-packages/torch/autograd/graph.py:979)"


def in_call(name: str) -> dict[str, Any]:
    return stack(
        f"{name} ({C10D}:3000)", "wrapper (/x/torch/distributed/c10d_logger.py:83)", "metric (/app/train.py:9)"
    )


def unrecorded(number: int, *stacks: dict[str, Any], last: int = 20, **more: Any) -> dict[str, Any]:
    """The newest call its ring holds is of an earlier step."""
    groups = [group([call(last - 1, step=8), call(last, step=9)])]
    return rank(number, **{"tier": "dispatch", "groups": groups, "stacks": list(stacks), "step": 10, **more})


def unfinished(run: Path) -> list[tuple[int, str, int]]:
    flight = ingest.load([str(run / "hang")]).table("flight")
    left = flight.filter(pl.col("state") != "completed").sort("rank")
    return [(row["rank"], row["op"], row["seq"]) for row in left.to_dicts()]


def test_who_stands_in_a_collective_waits_in_the_next_call(tmp_path: Path) -> None:
    elsewhere = unrecorded(1, stack("load (/app/data.py:7)"))
    write(tmp_path, elsewhere, *(unrecorded(number, in_call("all_reduce")) for number in (0, 2, 3)))
    assert unfinished(tmp_path) == [(number, "all_reduce", 21) for number in (0, 2, 3)]
    status = ingest.load([str(tmp_path / "hang")]).table("flight_status")
    assert dict(status.select("rank", "last_enqueued").iter_rows()) == {0: 21, 1: 20, 2: 21, 3: 21}


def test_different_operations_stay_different(tmp_path: Path) -> None:
    odd = unrecorded(2, in_call("barrier"))
    write(tmp_path, odd, *(unrecorded(number, in_call("all_reduce")) for number in (0, 1, 3)))
    assert unfinished(tmp_path) == [
        (0, "all_reduce", 21), (1, "all_reduce", 21), (2, "barrier", 21), (3, "all_reduce", 21)
    ]  # fmt: skip


def test_ranks_that_recorded_different_steps_are_not_taken_for_late(tmp_path: Path) -> None:
    behind = unrecorded(1, in_call("all_reduce"), last=12)
    write(tmp_path, behind, *(unrecorded(number, in_call("all_reduce")) for number in (0, 2, 3)))
    assert {seq for _, _, seq in unfinished(tmp_path)} == {21}


def test_what_one_rank_did_record_gives_the_number(tmp_path: Path) -> None:
    recorded = rank(0, tier="dispatch", groups=[group([call(24, step=10), call(25, "issued", step=10)])])
    write(tmp_path, recorded, *(unrecorded(number, in_call("all_reduce")) for number in (1, 2, 3)))
    assert {seq for _, _, seq in unfinished(tmp_path)} == {25}


def test_captures_of_two_nodes_are_compared(tmp_path: Path) -> None:
    write(tmp_path, unrecorded(0, in_call("all_reduce"), last=30), unrecorded(1, in_call("all_reduce")))
    write(tmp_path, unrecorded(2, stack("load (/app/d.py:1)")), unrecorded(3, in_call("all_reduce")), host="node-b")
    assert unfinished(tmp_path) == [(number, "all_reduce", 31) for number in (0, 1, 3)]


def test_a_tier_that_sees_everything_needs_no_guess(tmp_path: Path) -> None:
    seen = rank(0, stacks=[in_call("barrier")], step=99)
    write(tmp_path, seen, late(1))
    assert unfinished(tmp_path) == [(0, "all_reduce", 21)]


@pytest.mark.parametrize(
    ("stacks", "more", "op"),
    [
        ([in_call("all_gather_into_tensor")], {}, "all_gather"),
        ([stack(BACKWARD, "step (/app/train.py:40)")], {}, "all_reduce"),
        ([stack(BACKWARD, "step (/app/train.py:40)")], {"cpu_share": 0.9}, None),
        ([stack("load (/app/data.py:7)")], {}, None),
        ([in_call("send")], {}, None),
        ([in_call("all_reduce")], {"state": "T"}, None),
        ([stack("f (/app/a.py:1)", state="gil")], {}, None),
        ([], {}, None),
        (
            [stack("g (/app/a.py:1)"), stack("c10d::Work::wait (libtorch.so)", "g (/app/a.py:1)", kind="native")],
            {},
            "",
        ),
    ],
)
def test_what_a_stack_waits_in(stacks: list[dict[str, Any]], more: dict[str, Any], op: str | None) -> None:
    assert waits_in(unrecorded(0, *stacks, **more)) == op
