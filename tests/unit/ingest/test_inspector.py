"""NCCL Inspector's output: completed calls by communicator, operation and size."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ddiag.errors import InputError
from ddiag.ingest import load
from ddiag.model.run import Run


def _call(
    seq: int, us: int, *, op: str = "AllReduce", comm: str = "0x7f8c", rank: int = 2, ranks: int = 8
) -> dict[str, Any]:
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1_748_030_377_748_202 + seq,
                     "hostname": "gn7", "pid": 41},
        "coll_perf": {"coll": "AllReduce", "coll_sn": seq, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": us,
                      "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 100.0, "coll_busbw_gbs": 1000.0 / us},
    }  # fmt: skip


def _read(tmp_path: Path, *items: Any, name: str = "gn7-pid41.log") -> Run:
    path = tmp_path / name
    text = "\n".join(item if isinstance(item, str) else json.dumps(item) for item in items) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return load([str(path)])


def _fields(run: Run) -> list[dict[str, Any]]:
    return [json.loads(text) for text in run.tables["log_events"]["fields"]]


@pytest.mark.parametrize("name", ["gn7-pid41.log", "gn7-pid41.json.gz"])
def test_calls_of_one_size_are_told_together(name: str, tmp_path: Path) -> None:
    run = _read(tmp_path, _call(7, 10), _call(8, 40), _call(9, 20), name=name)
    (event,) = _fields(run)
    assert (event["op"], event["bytes"], event["calls"], event["last_seq"]) == ("all_reduce", 1 << 20, 3, 9)
    assert (event["median_us"], event["worst_us"], event["median_busbw_gbs"]) == (20, 40, 50)
    row = run.tables["log_events"].row(0, named=True)
    assert (row["rank"], row["host"], row["ts_ns"]) == (2, "gn7", (1_748_030_377_748_202 + 9) * 1000)


def test_the_rank_is_that_of_the_largest_communicator(tmp_path: Path) -> None:
    run = _read(tmp_path, _call(1, 5, comm="0xaa", rank=0, ranks=2), _call(1, 5, rank=6))
    assert run.tables["log_events"]["rank"].to_list() == [6, 6]
    assert [(event["comm"], event["group_rank"]) for event in _fields(run)] == [("aa", 0), ("7f8c", 6)]


def test_sends_and_flat_headers_of_older_output_are_read(tmp_path: Path) -> None:
    flat = _call(3, 10)
    flat |= flat.pop("header") | flat.pop("metadata")
    send = _call(1, 10)
    send["p2p_perf"] = {"p2p": "Send", "p2p_sn": 4, "p2p_msg_size_bytes": 64, "p2p_exec_time_us": 3}
    del send["coll_perf"]
    assert {event["op"] for event in _fields(_read(tmp_path, flat, send))} == {"all_reduce", "send"}


def test_lines_that_are_cut_off_are_counted_as_dropped(tmp_path: Path) -> None:
    run = _read(tmp_path, _call(1, 5), json.dumps(_call(2, 5))[:90], "[1]")
    assert (run.coverage.dropped_records, _fields(run)[0]["calls"]) == (2, 1)


def test_output_without_a_call_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a completed call") as refused:
        _read(tmp_path, '{"coll_perf": 3}')
    assert "\n" not in str(refused.value)
