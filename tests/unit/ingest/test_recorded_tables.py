"""Records as tables: what they number by themselves is told as everybody knows it."""

from __future__ import annotations

import numpy as np

from ddiag.ingest.recorded_tables import Context, tables_of
from ddiag.ingest.rings import RECORD, Records
from ddiag.schema.phases import Kind, Op, State
from ddiag.schema.ring import NO_DTYPE

CONTEXT = Context(1, ("default", "odd", "untold"), 0, {}, {"default": (0, 1, 2, 3), "odd": (1, 3)}, {})


def calls(*found: tuple[Op, int, int]) -> Records:
    """(op, number of the group, peer in it), one ms apart."""
    records = np.zeros(len(found), dtype=RECORD)
    for at, (op, group, peer) in enumerate(found):
        record = records[at]
        record["kind"], record["op"], record["group"], record["peer"] = Kind.COLLECTIVE, op, group, peer
        record["state"], record["dtype"], record["label"] = State.DONE, NO_DTYPE, -1
        record["enqueue_ns"] = record["start_ns"] = 1_000_000 * (at + 1)
        record["end_ns"] = record["start_ns"] + 1000
    return records


def test_peers_and_roots_are_global_ranks() -> None:
    """c10d numbers the ranks of a group from 0, and so does the ring."""
    records = calls((Op.SEND, 1, 1), (Op.RECV, 1, 0), (Op.BROADCAST, 1, 1), (Op.SEND, 0, 2), (Op.ALL_REDUCE, 1, -1))
    assert tables_of(records, CONTEXT)["collectives"]["peer"].to_list() == [3, 1, 3, 2, None]


def test_a_peer_in_a_group_that_nobody_told_of_is_unknown() -> None:
    """Neither a group without a fact, nor a number without a name, nor one beyond the group's ranks."""
    records = calls((Op.SEND, 2, 1), (Op.SEND, 9, 1), (Op.SEND, -1, 1), (Op.SEND, 1, 2))
    assert tables_of(records, CONTEXT)["collectives"]["peer"].to_list() == [None] * 4
