"""NCCL's RAS as text (NCCL 2.24 to 2.31) and JSON: who launched how much, who did not answer, who is dead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ddiag.ingest import load
from ddiag.model.run import Run

HEAD = """\
NCCL version 2.27.3 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
_NO_WARNINGS = "\n\nErrors\n======\n\nWarnings\n========\n"
OK = HEAD + "    0         1         2         4         8         8   RUNNING      OK" + _NO_WARNINGS
MISMATCH = (
    HEAD
    + """\
    0         1         2         4         8         8   RUNNING  MISMATCH
    1         4         2         2         4         8   RUNNING      OK

Errors
======

Warnings
========

#0-0 (78db921d1c117b4a) MISMATCH
"""
)


def _read(tmp_path: Path, text: str, name: str = "ras.txt") -> Run:
    path = tmp_path / name
    path.write_text(text)
    return load([str(path)])


def _events(run: Run, kind: str) -> list[dict[str, Any]]:
    found = run.tables["log_events"].filter(pl.col("kind") == kind)
    return [json.loads(fields) for fields in found["fields"]]


def _launched(run: Run) -> dict[int | None, int | None]:
    rows = run.tables["flight_status"].filter(pl.col("origin") == "ras")
    return dict(rows.select("rank", "last_enqueued").iter_rows())


def test_running_ok_is_said_of_the_whole_job_without_a_rank(tmp_path: Path) -> None:
    run = _read(tmp_path, OK)
    (row,) = run.tables["flight_status"].to_dicts()
    assert (row["rank"], row["ranks"], row["last_enqueued"], row["origin"]) == (None, list(range(8)), None, "ras")
    (status,) = _events(run, "ras.status")
    assert (status["status"], status["errors"], status["job_gpus"], status["report"]) == ("RUNNING", ["OK"], 8, 1)


@pytest.mark.parametrize(
    ("differs", "op"),
    [("collective", ""), ("AllReduce", "all_reduce"), ("ReduceScatter", "reduce_scatter")],
    ids=["2.24", "2.27", "2.27 reduce-scatter"],
)
def test_a_rank_that_launched_less_is_named_with_all_counts(differs: str, op: str, tmp_path: Path) -> None:
    run = _read(
        tmp_path,
        MISMATCH + f"  Communicator ranks have different {differs} operation counts\n"
        "  7 ranks have launched up to operation 6650\n"
        "  Rank 3 has launched up to operation 6648 -- GPU 3 managed by process 4711 on node 10.0.0.2\n\n",
    )
    (event,) = _events(run, "ras.mismatch")
    assert (event["op"], event["launched"], event["behind"], event["lag"]) == (op, {"3": 6648}, [3], 2)
    assert (event["others"], event["others_launched"], event["whole_job"]) == (7, 6650, True)
    assert _launched(run) == {rank: 6648 if rank == 3 else 6650 for rank in range(8)}


def test_ranks_listed_below_a_count_have_that_count(tmp_path: Path) -> None:
    run = _read(
        tmp_path,
        MISMATCH + "  Communicator ranks have different collective operation counts\n"
        "  6 ranks have launched up to operation 12\n"
        "  2 ranks have not launched any operations\n"
        "  Rank 0 -- GPU 0 (NVML 4) managed by process 41 on node 10.0.0.2\n"
        "  Rank 5 -- [process information not found]\n",
    )
    (event,) = _events(run, "ras.mismatch")
    assert (event["behind"], event["lag"]) == ([0, 5], 12)
    assert _launched(run) == {rank: 0 if rank in (0, 5) else 12 for rank in range(8)}


def test_counts_of_several_operations_are_added(tmp_path: Path) -> None:
    run = _read(
        tmp_path,
        MISMATCH + "  Communicator ranks have different AllGather operation counts\n"
        "  7 ranks have launched up to operation 10\n"
        "  Rank 6 has not launched any operations -- GPU 2 managed by process 9 on node a\n\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 5\n"
        "  Rank 6 has launched up to operation 4 -- GPU 2 managed by process 9 on node a\n\n",
    )
    assert [event["op"] for event in _events(run, "ras.mismatch")] == ["all_gather", "all_reduce"]
    assert _launched(run) == {rank: 4 if rank == 6 else 15 for rank in range(8)}


def test_two_unnamed_counts_leave_the_ranks_unknown(tmp_path: Path) -> None:
    run = _read(
        tmp_path,
        MISMATCH + "  Communicator ranks have different collective operation counts\n"
        "  4 ranks have launched up to operation 12\n"
        "  3 ranks have launched up to operation 11\n"
        "  Rank 5 has launched up to operation 10 -- GPU 1 managed by process 9 on node a\n",
    )
    assert _launched(run) == {5: 10}


def test_ranks_of_a_part_of_the_job_are_not_taken_for_the_jobs_ranks(tmp_path: Path) -> None:
    run = _read(
        tmp_path,
        MISMATCH.replace("#0-0", "#1-2") + "  Communicator ranks have different collective operation counts\n"
        "  3 ranks have launched up to operation 12\n"
        "  Rank 1 has launched up to operation 11 -- GPU 1 managed by process 9 on node a\n",
    )
    (event,) = _events(run, "ras.mismatch")
    assert (event["whole_job"], event["size"]) == (False, 4)
    assert "flight_status" not in run.tables


def test_reports_one_after_the_other_are_counted_and_other_text_is_not_taken_for_them(tmp_path: Path) -> None:
    again = (
        "  Communicator ranks have different collective operation counts\n  7 ranks have launched up to operation {}\n"
    )
    lag = "  Rank 3 has launched up to operation {} -- GPU 3 managed by process 4711 on node 10.0.0.2\n"
    text = MISMATCH + again.format(20) + lag.format(19) + "\n$ sleep 10; ncclras\n" + "Rank 9 has status FINE\n"
    run = _read(tmp_path, text + MISMATCH + again.format(20) + lag.format(19))
    first, second = _events(run, "ras.mismatch")
    assert (first["report"], second["report"]) == (1, 2)
    assert first["launched"] == second["launched"] == {"3": 19}


def test_missing_and_dead_processes_are_named(tmp_path: Path) -> None:
    table = "    0         1         2       3-4         8         7   RUNNING  INCOMPLETE\n\nErrors\n======\n\n"
    run = _read(
        tmp_path,
        HEAD + table + "INCOMPLETE\n  Missing communicator data from 1 job process\n"
        "  Process 3748990 on node node1 managing GPU 3\n\n"
        "DEAD\n  2 job processes are considered dead (unreachable via the RAS network)\n"
        "  Process 3748991 on node node1 managing GPU 4\n  Process 12 on node node2 managing GPUs 0,1\n\n"
        "#0-0 (1bdb83b038775869) INCOMPLETE\n  Missing communicator data from 1 rank\n"
        "  Rank 7 -- GPU 3 managed by process 3748990 on node node1\n\n"
        "Warnings\n========\n\nTIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n\n",
    )
    of_job, of_comm = _events(run, "ras.incomplete")
    assert of_job["processes"] == [{"pid": 3748990, "host": "node1", "gpus": [3]}]
    assert (of_comm["ranks"], of_comm["missing"], of_comm["whole_job"]) == ([7], 1, True)
    (dead,) = _events(run, "ras.dead")
    assert (dead["missing"], [one["pid"] for one in dead["processes"]]) == (2, [3748991, 12])
    assert dead["processes"][1]["gpus"] == [0, 1]
    assert [event["count"] for event in _events(run, "ras.timeout")] == [2]


@pytest.mark.parametrize(
    ("line", "ranks"),
    [("The missing rank: 21", [21]), ("The missing ranks: 3, 5", [3, 5]), ("The missing ranks: 3-5", [3, 4, 5])],
)
def test_missing_ranks_of_nccl_2_24_are_listed(line: str, ranks: list[int], tmp_path: Path) -> None:
    text = f"#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from {len(ranks)} ranks\n  {line}\n"
    (event,) = _events(_read(tmp_path, OK + text), "ras.incomplete")
    assert event["ranks"] == ranks


def test_states_and_errors_of_ranks_are_told(tmp_path: Path) -> None:
    run = _read(
        tmp_path,
        MISMATCH + "  Communicator ranks have different status\n  5 ranks have status NOCOMM\n"
        "  2 ranks have status RUNNING\n  Rank 0 -- GPU 0 managed by process 1 on node a\n"
        "  Rank 4 -- GPU 0 managed by process 2 on node b\n"
        "  Rank 6 has status FINALIZE -- GPU 2 managed by process 3 on node b\n\n"
        "#0-0 (78db921d1c117b4a) ERROR\n  Asynchronous errors on 3 ranks\n"
        "  2 ranks reported Remote process error\n  Rank 1 -- GPU 1 managed by process 5 on node a\n"
        "  Rank 2 -- GPU 2 managed by process 6 on node a\n"
        "  Rank 7 reported System error -- GPU 3 managed by process 7 on node b\n\n",
    )
    (states,) = _events(run, "ras.status_mismatch")
    assert states["statuses"] == {"NOCOMM": 5, "RUNNING": 2, "FINALIZE": 1}
    assert states["ranks"] == {"NOCOMM": [], "RUNNING": [0, 4], "FINALIZE": [6]}
    errors = [(event["error"], event["phase"], event["ranks"]) for event in _events(run, "ras.error")]
    assert errors == [("Remote process error", "async", [1, 2]), ("System error", "async", [7])]


def test_monitoring_says_who_died(tmp_path: Path) -> None:
    run = _read(tmp_path, "[2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1\n")
    (event,) = _events(run, "ras.peer")
    assert (event["event"], event["pid"], event["gpus"]) == ("PEER_DEAD", 1524345, [1])
    assert run.tables["log_events"]["host"].to_list() == ["172.16.64.245"]


def _rank(rank: int, counts: dict[str, int], **status: Any) -> dict[str, Any]:
    state = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": rank, "host": f"10.0.0.{rank // 2}", "pid": 100 + rank, "cuda_dev": rank % 2, "nvml_dev": rank % 2,
        "status": state | status, "collective_counts": counts,
    }  # fmt: skip


def _gone(rank: int, *, dead: bool) -> dict[str, Any]:
    return {
        key: value for key, value in _rank(rank, {}).items() if key not in ("collective_counts", "status")
    } | {"status": {"unresponsive": True, "considered_dead": dead}}  # fmt: skip


def _report(ranks: list[dict[str, Any]], missing: list[dict[str, Any]], *more: dict[str, Any]) -> dict[str, Any]:
    whole = {
        "hash": "0xae94423cfbb2ef4a", "size": len(ranks) + len(missing), "ranks": ranks, "missing_ranks": missing,
        "ranks_count": len(ranks), "missing_ranks_count": len(missing),
    }  # fmt: skip
    return {
        "nccl_version": "2.29.1", "timestamp": "2025-12-19 13:06:53", "communicators_count": 1 + len(more),
        "communicators": [whole, *more], "ras": {"collection_time_sec": 0.0, "timeouts_count": 1},
    }  # fmt: skip


def test_json_counts_are_added_over_operations(tmp_path: Path) -> None:
    ranks = [_rank(rank, {"AllReduce": 12 - (rank == 2), "Broadcast": 3}) for rank in range(4)]
    run = _read(tmp_path, json.dumps(_report(ranks, [])), "ras.json")
    assert _launched(run) == {0: 15, 1: 15, 2: 14, 3: 15}
    (event,) = _events(run, "ras.mismatch")
    assert (event["op"], event["behind"], event["launched"], event["lag"]) == ("all_reduce", [2], {"2": 11}, 1)
    (status,) = _events(run, "ras.status")
    assert (status["errors"], status["whole_job"]) == (["MISMATCH"], True)
    assert run.tables["log_events"]["ts_ns"].null_count() == 0


def test_json_names_missing_dead_and_failed_ranks(tmp_path: Path) -> None:
    ranks = [_rank(0, {"AllReduce": 5}), _rank(1, {"AllReduce": 5}, async_error=6)]
    run = _read(tmp_path, json.dumps(_report(ranks, [_gone(2, dead=True), _gone(3, dead=False)]), indent=2), "ras.json")
    (incomplete,) = _events(run, "ras.incomplete")
    assert (incomplete["ranks"], [one["pid"] for one in incomplete["processes"]]) == ([2, 3], [102, 103])
    assert [event["ranks"] for event in _events(run, "ras.dead")] == [[2]]
    assert [(event["error"], event["ranks"]) for event in _events(run, "ras.error")] == [("Remote process error", [1])]
    assert [event["count"] for event in _events(run, "ras.timeout")] == [1]


def test_json_of_nccl_2_28_9_lacks_a_comma_and_is_read(tmp_path: Path) -> None:
    text = json.dumps(_report([_rank(0, {"AllReduce": 5})], [_gone(1, dead=False)]), indent=2)
    broken = text.replace('"nvml_dev": 1,\n', '"nvml_dev": 1\n')
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)
    (event,) = _events(_read(tmp_path, broken, "ras.json"), "ras.incomplete")
    assert event["ranks"] == [1]


def test_json_ranks_of_a_part_of_the_job_become_the_jobs_by_host_and_gpu(tmp_path: Path) -> None:
    ranks = [_rank(rank, {"AllReduce": 5}) for rank in range(4)]
    part = {"hash": "0xbb", "size": 2, "ranks_count": 2, "missing_ranks_count": 0, "missing_ranks": [],
            "ranks": [_rank(2, {"AllGather": 9}) | {"rank": 0}, _rank(3, {"AllGather": 8}) | {"rank": 1}]}  # fmt: skip
    run = _read(tmp_path, json.dumps(_report(ranks, [], part)), "ras.json")
    rows = run.tables["flight_status"].filter(pl.col("group") == "bb").select("rank", "ranks", "last_enqueued").rows()
    assert rows == [(2, [2, 3], 9), (3, [2, 3], 8)]


def test_json_reports_and_events_may_follow_each_other(tmp_path: Path) -> None:
    one = json.dumps(_report([_rank(0, {"AllReduce": 5}), _rank(1, {"AllReduce": 4})], []))
    gone = json.dumps(
        {"timestamp": "2025-12-19 13:07:07", "group": "LIFECYCLE", "event": "PEER_DEAD",
         "peer": {"host": "10.0.0.1", "pid": 7, "cuda_devs": [1], "nvml_devs": [1]}, "details": ""}
    )  # fmt: skip
    run = _read(tmp_path, f"{one}\n{one}\n{gone}\n", "ras.json")
    assert [event["report"] for event in _events(run, "ras.mismatch")] == [1, 2]
    assert [event["gpus"] for event in _events(run, "ras.peer")] == [[1]]


def test_json_that_is_cut_off_gives_its_whole_reports(tmp_path: Path) -> None:
    one = json.dumps(_report([_rank(0, {"AllReduce": 5}), _rank(1, {"AllReduce": 4})], []))
    run = _read(tmp_path, f"{one}\n{one[:300]}", "ras.json")
    assert len(_events(run, "ras.mismatch")) == 1
    assert "cut off" in run.coverage.inputs[0].note
