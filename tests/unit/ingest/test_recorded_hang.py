"""Captures of a hang as tables: calls, stacks and states of processes of all nodes."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from ddiag import ingest
from ddiag.errors import InputError
from ddiag.model.run import Run
from tests.captures import T_NS, call, group, late, rank, stack, write


def load(run: Path) -> Run:
    return ingest.load([str(run / "hang")])


def kinds(run: Run) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for number, kind in run.table("log_events").select("rank", "kind").iter_rows():
        found.setdefault(number, []).append(kind)
    return found


def unfinished(run: Run) -> list[tuple[int, str, int]]:
    left = run.table("flight").filter(pl.col("state") != "completed").sort("rank", "created_ns")
    return [(row["rank"], row["op"], row["seq"]) for row in left.to_dicts()]


def test_calls_stacks_and_states_of_every_rank_are_there(tmp_path: Path) -> None:
    write(tmp_path, rank(0), late(1), rank(2), rank(3))
    run = load(tmp_path)
    assert unfinished(run) == [(0, "all_reduce", 21), (2, "all_reduce", 21), (3, "all_reduce", 21)]
    status = {row["rank"]: row["last_enqueued"] for row in run.table("flight_status").to_dicts()}
    assert status == {0: 21, 1: 20, 2: 21, 3: 21}
    assert run.table("stacks").filter(pl.col("rank") == 1)["frames"].to_list() == [
        ["load (/app/data.py:7)", "<module> (/app/train.py:30)"]
    ]
    assert kinds(run) == {number: ["process.state"] for number in range(4)}
    assert run.coverage.ranks_seen == run.coverage.ranks_expected == (0, 1, 2, 3)


def test_elements_follow_from_bytes_and_type_and_the_line_from_the_stack(tmp_path: Path) -> None:
    write(tmp_path, rank(0), rank(1))
    (row,) = load(tmp_path).table("flight").filter((pl.col("rank") == 0) & (pl.col("seq") == 21)).to_dicts()
    assert (row["numel_in"], row["dtype"], row["frame"]) == (1024, "float32", "step (/app/train.py:40)")


def test_captures_of_all_nodes_are_one_run(tmp_path: Path) -> None:
    write(tmp_path, rank(0), rank(1))
    write(tmp_path, late(2), rank(3), host="node-b")
    run = load(tmp_path)
    assert run.coverage.ranks_seen == (0, 1, 2, 3)
    hosts = dict(run.table("log_events").select("rank", "host").iter_rows())
    assert hosts == {0: "node-a", 1: "node-a", 2: "node-b", 3: "node-b"}


def test_only_the_newest_capture_counts(tmp_path: Path) -> None:
    write(tmp_path, late(0), rank(1))
    write(tmp_path, rank(0), late(1), number=2)
    assert unfinished(load(tmp_path)) == [(0, "all_reduce", 21)]


def test_ranks_that_went_on_hang_no_longer(tmp_path: Path) -> None:
    write(tmp_path, rank(0), late(1), over_ns=T_NS + 12_000_000_000)
    run = load(tmp_path)
    assert not run.has("flight")
    (event,) = run.table("log_events").to_dicts()
    assert event["kind"] == "process.stall_over"
    assert json.loads(event["fields"]) == {"ranks": [0, 1], "seconds": 42.0}


@pytest.mark.parametrize(
    ("one", "kind", "words"),
    [
        (late(1, state="T"), "process.stopped", "SIGCONT"),
        (late(1, state="D", wchan="nfs_wait", kernel=["nfs_wait"]), "process.uninterruptible", "nfs_wait"),
        (late(1, state="", signal=9, stacks=[]), "process.gone", "killed by signal 9"),
        (late(1, closed=True, state="", stacks=[]), "process.finished", "good order"),
        (late(1, closed=True, state="", stacks=[], code=1), "process.gone", "exit code 1"),
    ],
)
def test_the_state_of_a_process_is_told_in_words(tmp_path: Path, one: dict[str, object], kind: str, words: str) -> None:
    write(tmp_path, rank(0), one)
    run = load(tmp_path)
    assert kind in kinds(run)[1]
    assert any(words in text for text in run.table("log_events").filter(pl.col("rank") == 1)["text"])


@pytest.mark.parametrize(("state", "words"), [("S", "sleeping"), ("R", "running"), ("T", "stopped"), ("I", "state I")])
def test_the_kernel_s_letter_for_a_state_is_spelt_out(tmp_path: Path, state: str, words: str) -> None:
    write(tmp_path, rank(0), late(1, state=state))
    events = load(tmp_path).table("log_events").filter((pl.col("rank") == 1) & (pl.col("kind") == "process.state"))
    assert f", {words}, no progress" in events["text"][0]


def test_a_stopped_rank_s_stack_says_so(tmp_path: Path) -> None:
    write(tmp_path, rank(0), late(1, state="T"))
    assert load(tmp_path).table("stacks").filter(pl.col("rank") == 1)["state"].to_list() == ["T"]


def test_sends_that_nobody_waits_for_are_unfinished_only_when_nothing_came_after(tmp_path: Path) -> None:
    send = call(1, "issued", op="send", peer=1, end_unknown=True)
    waits = group([call(20), {**send, "enqueue_ns": T_NS}])
    passed = group([{**send, "enqueue_ns": 5}, call(20)])
    write(tmp_path, rank(0, groups=[waits]), rank(1, groups=[passed]))
    assert unfinished(load(tmp_path)) == [(0, "send", 1)]


def test_what_the_devices_did_is_there(tmp_path: Path) -> None:
    write(tmp_path, rank(0), devices=[{"util": 100, "power_w": 90.5, "used_bytes": 1 << 30}])
    facts = load(tmp_path).table("node_facts")
    assert dict(facts.select("key", "number").iter_rows()) == {
        "gpu.utilization_pct": 100.0, "gpu.power_w": 90.5, "gpu.memory_used_mib": 1024.0
    }  # fmt: skip
    assert set(facts["device"]) == {"gpu0"}


def dump(folder: Path, *ranks: int) -> None:
    """Flight Recorder dumps beside the capture: call 7 is not over."""
    entry = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 7, "process_group": ["0", "default_pg"]}
    entry |= {"state": "started", "record_id": 1, "pg_id": 0, "op_id": 1, "is_p2p": False, "p2p_seq_id": 0}
    entry |= {"input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    entry |= {"time_created_ns": T_NS, "time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    for number in ranks:
        found = {"version": "2.10", "rank": number, "pg_config": {}, "pg_status": {}, "entries": [entry]}
        (folder / "hang" / "node-a-1" / f"flight-{number}").write_text(json.dumps(found))


@pytest.mark.parametrize(("dumped", "seq"), [((0, 1), 7), ((0,), 21)])
def test_dumps_of_all_ranks_count_instead_of_rings_and_those_of_some_do_not(
    tmp_path: Path, dumped: tuple[int, ...], seq: int
) -> None:
    write(tmp_path, rank(0), rank(1))
    dump(tmp_path, *dumped)
    run = load(tmp_path)
    assert set(run.table("flight").filter(pl.col("state") != "completed")["seq"]) == {seq}
    assert run.has("stacks")


# -- calls on a device, whose end nobody sees ------------------------------------------------------------------------


def device_calls(*seqs: int, **more: object) -> dict[str, object]:
    calls = [call(seq, "issued", end_unknown=True, **more) for seq in seqs]
    return group(calls, last_completed=None)


def test_what_all_ranks_issued_is_over_when_one_has_not_issued_more(tmp_path: Path) -> None:
    ahead, behind = device_calls(19, 20, 21), device_calls(19, 20)
    write(tmp_path, *(rank(number, groups=[ahead]) for number in (0, 2, 3)), rank(1, groups=[behind]))
    assert unfinished(load(tmp_path)) == [(number, "all_reduce", 21) for number in (0, 2, 3)]


def test_a_group_that_nobody_is_late_in_is_not_waited_in_while_another_is(tmp_path: Path) -> None:
    world = device_calls(21)
    tensor = {**device_calls(40), "name": "1", "desc": "mesh_tp", "ranks": [0, 1]}
    write(
        tmp_path,
        rank(0, groups=[{**world, "ranks": [0, 1]}, tensor]),
        rank(1, groups=[{**device_calls(20), "ranks": [0, 1]}, tensor]),
    )
    assert unfinished(load(tmp_path)) == [(0, "all_reduce", 21)]


def test_with_equal_counts_everywhere_the_newest_call_may_be_the_one(tmp_path: Path) -> None:
    write(tmp_path, *(rank(number, groups=[device_calls(20, 21)]) for number in range(4)))
    run = load(tmp_path)
    assert unfinished(run) == [(number, "all_reduce", 21) for number in range(4)]
    assert set(run.table("flight").filter(pl.col("seq") == 21)["state"]) == {"scheduled"}


# -- what cannot be used ---------------------------------------------------------------------------------------------


def test_a_capture_cut_short_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, rank(0))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="cut short"):
        ingest.load([str(path)])


def test_a_capture_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, rank(0))
    path.write_text(path.read_text().replace('"format_version":1', '"format_version":99'))
    with pytest.raises(InputError, match="newer ddiag"):
        ingest.load([str(path)])


def test_a_rank_without_stacks_is_still_told(tmp_path: Path) -> None:
    write(tmp_path, rank(0), late(1, stacks=[], no_stacks="py-spy is not installed"))
    run = load(tmp_path)
    assert set(run.table("stacks")["rank"]) == {0}
    assert unfinished(run) == [(0, "all_reduce", 21)]


def test_native_stacks_stand_beside_those_of_python(tmp_path: Path) -> None:
    both = [stack("step (/app/train.py:40)"), stack("ncclGroupEnd (libnccl.so)", kind="native")]
    write(tmp_path, rank(0, stacks=both), rank(1))
    assert load(tmp_path).table("stacks").filter(pl.col("rank") == 0)["kind"].to_list() == ["python", "native"]
