"""Flight Recorder dumps of every torch version and form become the same rows."""

from __future__ import annotations

import gzip
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ddiag.errors import InputError
from ddiag.ingest import load
from ddiag.model.incident import FLIGHT, FLIGHT_STATUS
from tests.unit.ingest.flight_dumps import FRAMES, NS, dump, entry, flight, read, status, waiting, write


def _without(made: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in made.items() if key not in keys}


def _torch22(record: int, **changes: Any) -> dict[str, Any]:
    return {
        "pg_id": 0, "seq_id": record + 1, "profiling_name": "nccl:all_reduce",
        "time_created_us": (NS + record * 1000) // 1000, "input_sizes": [[4, 8]], "output_sizes": [[4, 8]],
        "state": "completed", "retired": True, "frames": FRAMES,
    } | changes  # fmt: skip


def _torch23(record: int) -> dict[str, Any]:
    made = _without(
        entry(record), "process_group", "collective_seq_id", "p2p_seq_id", "input_dtypes", "output_dtypes", "is_p2p",
        "timeout_ms", "thread_name", "thread_id",
    )  # fmt: skip
    return made | {"seq_id": record + 1, "duration_ms": 0.5}


def _torch24(record: int) -> dict[str, Any]:
    return _without(entry(record), "timeout_ms", "thread_name", "thread_id")


VERSIONS: dict[str, Any] = {
    "2.2 bare list": [_torch22(0), _torch22(1)],
    "2.3 version 1.4": {"version": "1.4", "entries": [_torch23(0), _torch23(1)]},
    "2.4 version 2.1": dump([_torch24(0), _torch24(1)], version="2.1"),
    "2.5 version 2.4": dump([_without(entry(0), "thread_id"), _without(entry(1), "thread_id")], version="2.4"),
    "2.8 version 2.9": dump([entry(0), entry(1)], status={"0": (2, 2, 2)}, version="2.9", nccl_version="2.27.3"),
    "2.10 version 2.10": dump([entry(0), entry(1)], status={"0": (2, 2, 2)}),
}


@pytest.mark.parametrize("made", VERSIONS.values(), ids=VERSIONS.keys())
@pytest.mark.parametrize("name", ["nccl_trace_rank_2", "nccl_trace_rank_2.json"])
def test_every_version_gives_the_same_calls(made: Any, name: str, tmp_path: Path) -> None:
    run = read(write(tmp_path, made, name))
    rows = flight(run).select("rank", "group", "call", "op", "seq", "state", "numel_in", "created_ns", "frame").rows()
    where = "step (/job/train.py:41)"
    assert rows == [
        (2, "0", "coll", "all_reduce", 1, "completed", 32, NS, where),
        (2, "0", "coll", "all_reduce", 2, "completed", 32, NS + 1000, where),
    ]
    kept = status(run)
    assert (kept["rank"], kept["last_enqueued"], kept["last_completed"]) == (2, 2, 2)
    assert (kept["oldest_kept"], kept["origin"], kept["desc"]) == (None, "flight", "default_pg")


def test_a_json_dump_spells_numbers_as_text_and_never_as_zero(tmp_path: Path) -> None:
    made = dump([entry(0), waiting(1, time_discovered_started_ns=0, time_discovered_completed_ns=0, state="scheduled")])
    made["pg_status"] = {
        "0": {"last_enqueued_collective": "2", "last_started_collective": "1", "last_completed_collective": "1"}
    }
    run = read(write(tmp_path, made, "nccl_trace_rank_1.json"))
    assert flight(run)["completed_ns"].to_list() == [NS + 2, None]
    assert flight(run)["started_ns"].to_list() == [NS + 1, None]
    kept = status(run)
    assert (kept["last_enqueued"], kept["last_started"], kept["last_completed"]) == (2, 1, 1)
    assert kept["ranks"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_broadcast_oop", "broadcast"),
        ("nccl:ALLGATHER_coalesced", "all_gather"),
        ("nccl:all_to_all", "all_to_all"),
        ("xccl:all_reduce", "all_reduce"),
        ("mine:all_reduce", "all_reduce"),
        ("gloo:barrier", "barrier"),
        ("nccl:split", "split"),
    ],
)
def test_calls_have_one_name_whatever_the_backend(name: str, op: str, tmp_path: Path) -> None:
    assert flight(read(write(tmp_path, dump([entry(0, name)]))))["op"].to_list() == [op]


def test_sends_name_the_other_side_by_its_global_rank(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", str(list(range(16)))), "52": ("PIPELINE", "[3, 7, 11, 15]")}
    of_group = {"process_group": ("52", "PIPELINE"), "pg_id": 6}
    sent, received = entry(0, "nccl:send 1->2", **of_group), waiting(1, "nccl:recv 1<-0", **of_group)
    run = read(write(tmp_path, dump([sent, received], groups), "dump"))
    rows = flight(run).select("rank", "call", "op", "seq", "peer", "state").rows()
    assert rows == [(7, "p2p", "send", 1, 11, "completed"), (7, "p2p", "recv", 2, 3, "started")]


def test_coalesced_collectives_are_one_call_in_the_state_of_their_end(tmp_path: Path) -> None:
    inside = {"collective_seq_id": 5, "state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    parts = [entry(record, "nccl:_all_gather_base", input_sizes=[[record]], **inside) for record in (7, 8)]
    end = entry(9, "nccl:coalesced", input_sizes=[], output_sizes=[], collective_seq_id=5)
    rows = flight(read(write(tmp_path, dump([entry(3), *parts, end]))))
    assert rows.select("op", "seq", "state", "numel_in", "sizes").rows()[1] == (
        "all_gather", 5, "completed", 15, "[[[7],[8]],[[4,8],[4,8]]]",
    )  # fmt: skip
    assert rows["completed_ns"][1] == NS + 9002
    assert rows.height == 2


def test_a_rank_stuck_inside_a_coalesced_call_has_it_unfinished(tmp_path: Path) -> None:
    inside = {"collective_seq_id": 5, "state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    rows = flight(
        read(write(tmp_path, dump([entry(3), *(entry(r, "nccl:_all_gather_base", **inside) for r in (5, 6))])))
    )
    assert rows.select("op", "seq", "state").rows()[1:] == [("all_gather", 5, "scheduled")]


def test_a_group_made_again_under_its_old_name_starts_a_count_of_its_own(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", "[0, 1]"), "5": ("TP", "[0, 1]")}
    old = [entry(record, process_group=("5", "TP"), pg_id=3) for record in range(6)]
    new = [waiting(record + 6, process_group=("5", "TP"), pg_id=7, collective_seq_id=record + 1) for record in range(2)]
    run = read(write(tmp_path, dump([*old, *new], groups)))
    assert flight(run).filter(pl.col("group") == "5").select("seq", "state").rows() == [(1, "started"), (2, "started")]
    assert (status(run, "5")["last_enqueued"], status(run, "5 (earlier: 3)")["last_completed"]) == (2, 6)


def test_batched_sends_are_in_the_state_of_their_batch(tmp_path: Path) -> None:
    inside = {"p2p_seq_id": 3, "state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    batch = [entry(0, "nccl:send 1->0", **inside), entry(1, "nccl:recv 1<-0", **inside)]
    end = entry(2, "nccl:coalesced", is_p2p=True, p2p_seq_id=3, collective_seq_id=0)
    rows = flight(read(write(tmp_path, dump([*batch, end]))))
    assert rows.select("rank", "op", "peer", "seq", "state").rows() == [
        (1, "send", 0, 3, "completed"), (1, "recv", 0, 3, "completed"),
    ]  # fmt: skip


def test_gloo_says_that_a_call_is_over_by_retiring_it(tmp_path: Path) -> None:
    unseen = {"state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    calls = [entry(0, "gloo:all_reduce", **unseen), entry(1, "gloo:barrier", retired=False, **unseen)]
    made = dump(calls, {"": ("", "[]")}, {"0": (2, -1, 1)})
    runs = read(*(write(tmp_path, made, f"comm_lib_trace_rank_{rank}") for rank in (0, 1, 3)))
    assert flight(runs)["state"].to_list() == ["completed", "scheduled"] * 3
    rows = (
        runs.tables["flight_status"].select("group", "ranks", "last_enqueued", "last_started", "last_completed").rows()
    )
    assert rows == [("0", [0, 1, 2, 3], 2, None, 1)] * 3


def test_an_nccl_call_that_was_retired_without_completing_stays_unfinished(tmp_path: Path) -> None:
    """The watchdog retires what it gave up on."""
    assert flight(read(write(tmp_path, dump([waiting(0, retired=True)]))))["state"].to_list() == ["started"]


@pytest.mark.parametrize(
    ("frames", "where"),
    [
        (FRAMES, "step (/job/train.py:41)"),
        ([FRAMES[0], {"name": "run", "filename": "/v/site-packages/deepspeed/engine.py", "line": 7}],
         "run (/v/site-packages/deepspeed/engine.py:7)"),
        ([FRAMES[0]], f"all_reduce ({FRAMES[0]['filename']}:9)"),
        ([FRAMES[0], {"name": "f", "filename": "/u/torch/train.py", "line": 3}], "f (/u/torch/train.py:3)"),
        ([{"name": "cell", "filename": "<ipython-input-3-ab>", "line": 1}], "cell (<ipython-input-3-ab>:1)"),
        ([], None),
        (None, None),
        ([{"odd": 1}, 3, None], None),
    ],
)  # fmt: skip
def test_the_frame_is_the_innermost_of_the_users_code(frames: Any, where: str | None, tmp_path: Path) -> None:
    assert flight(read(write(tmp_path, dump([entry(0, frames=frames)]))))["frame"].to_list() == [where]


def test_a_wrapped_ring_says_what_it_still_has(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", "[0, 1]"), "3": ("TP", "[0, 1]")}
    run = read(write(tmp_path, dump([entry(record) for record in (40, 41, 42)], groups)))
    assert status(run)["oldest_kept"] == 41
    assert status(run, "3")["last_enqueued"] is None
    whole = read(write(tmp_path, dump([entry(record) for record in (0, 1, 2)], groups), "other/nccl_trace_rank_0"))
    assert status(whole)["oldest_kept"] is None
    assert status(whole, "3")["last_enqueued"] == -1


def test_groups_without_entries_find_their_status_by_the_order_of_creation(tmp_path: Path) -> None:
    groups = {"0": ("default_pg", "[0, 1]"), "36": ("TP", "[0, 1]"), "112": ("DP", "[0]")}
    numbers = {"0": (7, -1, 7), "5": (400, -1, 399), "17": (9, -1, 9)}
    one = entry(600, process_group=("36", "TP"), pg_id=5, collective_seq_id=400)
    run = read(write(tmp_path, dump([one], groups, numbers)))
    found = {name: status(run, name)["last_enqueued"] for name in groups}
    assert found == {"0": 7, "36": 400, "112": 9}
    contradicted = dump([entry(600, process_group=("36", "TP"), pg_id=17)], groups, numbers)
    assert status(read(write(tmp_path, contradicted, "x/nccl_trace_rank_0")), "112")["last_enqueued"] is None


def test_a_status_that_counts_sends_is_not_taken_for_collectives(tmp_path: Path) -> None:
    calls = [entry(900, "nccl:send 0->1", collective_seq_id=26, p2p_seq_id=11_981)]
    kept = status(read(write(tmp_path, dump(calls, status={"0": (11_986, -1, 11_983)}))))
    assert (kept["last_enqueued"], kept["last_completed"]) == (26, 26)


@pytest.mark.parametrize("name", ["nccl_trace_rank_0", "nccl_trace_rank_0.json"])
def test_of_a_dump_that_is_cut_off_the_newest_calls_are_unknown_not_missing(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, dump([entry(record) for record in range(40)]), name)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.9)])
    run = read(path)
    assert 20 < flight(run).height < 40
    assert status(run)["last_enqueued"] is None
    assert "used as far as it goes" in run.coverage.inputs[0].note


def test_dumps_are_read_packed_and_from_archives(tmp_path: Path) -> None:
    data = pickle.dumps(dump([entry(0)]), 2)
    (tmp_path / "nccl_trace_rank_1.gz").write_bytes(gzip.compress(data))
    with zipfile.ZipFile(tmp_path / "dumps.zip", "w") as archive:
        archive.writestr("node-a/nccl_trace_rank_2", data)
        archive.writestr("node-a/nccl_trace_rank_3.json", json.dumps(dump([entry(0)])))
    assert sorted(flight(load([str(tmp_path)]))["rank"]) == [1, 2, 3]


@pytest.mark.parametrize(
    "damage",
    [
        {"entries": "none"},
        {"entries": [1, None, "x", entry(0)]},
        {"pg_config": [1, 2]},
        {"pg_config": {"0": {"ranks": "[0, x, 2"}}},
        {"pg_config": {"0": "[0, 1]"}},
        {"pg_status": {"0": None, "1": {"last_enqueued_collective": "many"}}},
        {"entries": [entry(0, input_sizes=5, output_sizes=[None], input_dtypes=7, frames=3, retired="x", op_id="x")]},
        {"entries": [entry(0, process_group=[], collective_seq_id=[1], time_created_ns="soon", state=None)]},
        {"entries": [entry(0, op_id=2**80, timeout_ms=1.5, input_sizes=[[2**40, 2**40]])]},
        {"entries": [entry(0, "nccl:send 9->99"), {"profiling_name": None}]},
        {"version": None},
    ],
)
@pytest.mark.parametrize("name", ["nccl_trace_rank_0", "nccl_trace_rank_0.json"])
def test_odd_values_cost_themselves_only(damage: dict[str, Any], name: str, tmp_path: Path) -> None:
    run = read(write(tmp_path, dump([entry(0)]) | damage, name))
    assert not run.coverage.unreadable
    assert run.tables["flight_status"].height >= 1


def test_an_entry_without_anything_is_counted_as_dropped(tmp_path: Path) -> None:
    run = read(write(tmp_path, dump([entry(0), {"x": 1}, 7])))
    assert run.coverage.dropped_records == 2


def test_a_dump_without_entries_still_says_how_far_the_groups_came(tmp_path: Path) -> None:
    made = dump([], status={"0": (8, 8, 7)})
    del made["entries"]
    kept = status(read(write(tmp_path, made, "nccl_trace_rank_3.json")))
    assert (kept["rank"], kept["last_enqueued"], kept["last_completed"]) == (3, 8, 7)


@pytest.mark.parametrize(
    "text", ['{"entries": [], "pg_config": 3, "pg_status": 1}', '[{"profiling_name', "[[[[" * 50_000]
)
def test_json_that_holds_no_dump_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0.json"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read(path)
    assert "\n" not in str(refused.value)


def test_types_and_sizes_are_kept_as_written(tmp_path: Path) -> None:
    one = entry(
        0, input_sizes=[[2, 3], [4]], input_dtypes=["BFloat16", "Byte"], output_sizes=[[]], output_dtypes=["Float"]
    )
    row = flight(read(write(tmp_path, dump([one])))).row(0, named=True)
    assert (row["dtype"], row["sizes"]) == ("BFloat16+Byte+Float", "[[[2,3],[4]],[[]]]")
    assert (row["numel_in"], row["numel_out"]) == (10, 1)


def test_columns_are_those_declared(tmp_path: Path) -> None:
    run = read(write(tmp_path, dump([entry(0)])))
    assert flight(run).schema == pl.Schema(FLIGHT.schema)
    assert run.tables["flight_status"].schema == pl.Schema(FLIGHT_STATUS.schema)
