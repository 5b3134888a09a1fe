"""Votes on what the members of a group called."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ddiag.analysis.hang.vote import Mismatch, mismatches, unlike_siblings, vote, with_size
from ddiag.model.incident import FLIGHT

REDUCE, SHORT, CAST = ("all_reduce", 1024, "Float"), ("all_reduce", 512, "Float"), ("broadcast", 1024, "Float")


def calls(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"group": "0", "call": "coll", "op": "all_reduce", "seq": 5, "state": "started", "dtype": "Float"}
    made = [usual | {"numel_in": 1024, "numel_out": 1024, "created_ns": 10} | row for row in rows]
    return with_size(FLIGHT.conform(pl.DataFrame(made)))


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_the_minority_is_odd_whoever_it_is(odd: int) -> None:
    assert vote({rank: SHORT if rank == odd else REDUCE for rank in range(4)}) == (odd,)


def test_a_tie_decides_nothing() -> None:
    assert vote({0: REDUCE, 1: SHORT}) == ()
    assert vote({0: REDUCE, 1: REDUCE, 2: CAST, 3: CAST}) == ()


def test_sibling_groups_decide_a_tie_when_they_know_one_side_only() -> None:
    assert vote({0: REDUCE, 1: SHORT}, [REDUCE, REDUCE]) == (1,)
    assert vote({0: REDUCE, 1: SHORT}, [REDUCE, SHORT]) == ()


def test_agreement_is_no_mismatch() -> None:
    assert mismatches(calls({"rank": 0}, {"rank": 1}), {"0": ""}) == []


@pytest.mark.parametrize("change", [{"op": "broadcast"}, {"numel_in": 512}, {"dtype": "Half"}])
def test_operation_size_and_type_are_compared(change: dict[str, Any]) -> None:
    (found,) = mismatches(calls({"rank": 0}, {"rank": 1}, {"rank": 2} | change), {"0": ""})
    assert (found.odd, found.open) == ((2,), True)


@pytest.mark.parametrize(
    ("op", "size"),
    [("all_to_all", "numel_in"), ("all_gather", "numel_in"), ("scatter", "numel_in"), ("gather", "numel_out")],
)
def test_sizes_that_may_differ_by_the_rule_of_the_operation_do_not_count(op: str, size: str) -> None:
    assert mismatches(calls({"rank": 0, "op": op}, {"rank": 1, "op": op, size: 7}), {"0": ""}) == []


def test_what_this_group_called_before_decides_a_tie() -> None:
    """1024 follows 8 here, and 512 never did."""
    past = [{"rank": rank, "seq": seq, "state": "completed"} for rank in (0, 1) for seq in range(1, 5)]
    past = [row | {"numel_in": 8 if int(str(row["seq"])) % 2 else 1024} for row in past]
    before = [{"rank": rank, "numel_in": 8} for rank in (0, 1)]
    now = [{"rank": 0, "seq": 6, "numel_in": 1024}, {"rank": 1, "seq": 6, "numel_in": 512}]
    (found,) = mismatches(calls(*past, *before, *now), {"0": ""})
    assert found.odd == (1,)


def test_a_lone_member_is_compared_with_sibling_groups() -> None:
    desc = {"1": "TP", "2": "TP", "3": "TP"}
    rows = [{"rank": rank, "group": str(group), "seq": 4} for group in (1, 2, 3) for rank in (group * 2,)]
    now = [{"rank": group * 2, "group": str(group), "seq": 5} for group in (1, 2, 3)]
    now[0] |= {"numel_in": 77}
    found = unlike_siblings(calls(*rows, *now), "1", 5, desc)
    assert found is not None
    assert found.odd == (2,)
    assert unlike_siblings(calls(*rows, *now), "2", 5, desc) is None


def test_the_words_say_what_and_who() -> None:
    found = Mismatch("0", 5, (4,), {**dict.fromkeys(range(4), REDUCE), 4: SHORT}, open=True)
    assert found.words == "all_reduce of 1,024 elements on 4 ranks, all_reduce of 512 elements on rank 4"
