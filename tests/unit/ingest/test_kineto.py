"""One trace to tables: categories of every torch version and device, times, annotations, memory, counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ddiag.ingest import load
from ddiag.model.run import Run
from ddiag.model.tables import TABLES
from tests.unit.ingest.kineto_text import BASE_US, healthy, kernel, launch, op, span, trace, write


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(*events: dict[str, Any], name: str = "rank0.json", **top: Any) -> Run:
        return load([write(tmp_path / name, trace(*events, **top))])

    return read


def words(column: pl.Series) -> list[str]:
    return list(column.cast(pl.String))


def test_every_table_has_exactly_its_declared_columns(tmp_path: Path) -> None:
    run = load([write(tmp_path / "rank0.json", healthy(host_name="n1"))])
    assert set(run.tables) == {
        "ranks", "captures", "groups", "steps", "ops", "launches", "kernels", "copies", "collectives",
    }  # fmt: skip
    for name, table in run.tables.items():
        assert dict(table.schema) == TABLES[name].empty().schema, name


@pytest.mark.parametrize(
    ("category", "table", "kind"),
    [
        ("cpu_op", "ops", "op"), ("Operator", "ops", "op"), ("user_annotation", "ops", "annotation"),
        ("gpu_user_annotation", "ops", "gpu_annotation"), ("python_function", "ops", "python"),
        ("cuda_runtime", "launches", "other"), ("cuda_driver", "launches", "other"), ("Runtime", "launches", "other"),
        ("hip_runtime", "launches", "other"), ("xpu_runtime", "launches", "other"),
        ("mtia_runtime", "launches", "other"),
        ("privateuse1_runtime", "launches", "other"), ("privateuse1_driver", "launches", "other"),
        ("kernel", "kernels", "compute"), ("Kernel", "kernels", "compute"), ("mtia_ccp_events", "kernels", "compute"),
    ],
)  # fmt: skip
def test_a_category_decides_the_table(read: Any, category: str, table: str, kind: str) -> None:
    run = read(span(category, "something", 0, 5))
    assert words(run.table(table)["kind"]) == [kind]
    assert [name for name in ("ops", "launches", "kernels", "copies") if run.has(name)] == [table]


@pytest.mark.parametrize("category", ["cuda_sync", "overhead", "Trace", "cuda_profiler_range"])
def test_waits_and_overheads_are_not_work(read: Any, category: str) -> None:
    run = read(span(category, "Stream Wait Event", 0, 500, stream=7), kernel("gemm", 0, 5))
    assert run.table("kernels").height == 1
    assert not run.has("ops")


def test_a_compiled_operator_with_a_stream_argument_is_no_kernel(read: Any) -> None:
    run = read(
        op("triton_poi_fused_add_0", 0, 74, stream=0, kernel_backend="triton"), kernel("triton_poi_fused_add_0", 80, 9)
    )
    assert run.table("kernels").height == 1
    assert run.table("ops").height == 1


def test_device_waits_of_mtia_queues_are_not_kernels(read: Any) -> None:
    run = read(span("mtia_ccp_events", "event_wait", 0, 900), span("mtia_ccp_events", "matmul", 900, 50))
    assert words(run.table("kernels")["name"]) == ["matmul"]
    assert run.table("ranks")["device_kind"].to_list() == ["mtia"]


def test_old_layout_annotations_are_found_among_the_operators(read: Any) -> None:
    run = read(
        span("Operator", "ProfilerStep#4", 0, 100, tid="25738"),
        span("Operator", "Optimizer.step#SGD.step", 50, 9, tid="25738"),
        span("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 9, tid="25738"),
        span("Operator", "aten::add", 20, 5, tid="25738", **{"External id": 9}),
        span("Memcpy", "Memcpy HtoD (Pageable -> Device)", 40, 5, tid="stream 7", **{"external id": 9}, bytes=100),
    )
    assert words(run.table("ops")["kind"]) == ["annotation", "annotation", "annotation", "op"]
    assert run.table("steps").select("step", "rank").rows() == [(4, 0)]
    assert run.table("ops")["tid"].to_list() == [25738] * 4
    copy = run.table("copies").row(0, named=True)
    assert (copy["stream"], copy["external_id"], copy["direction"], copy["pinned"]) == (7, 9, "h2d", False)


@pytest.mark.parametrize(
    "times",
    [
        [BASE_US + 1, BASE_US + 4], [float(BASE_US + 1), float(BASE_US + 4)], [str(BASE_US + 1), str(BASE_US + 4)],
        [BASE_US + 1, float(BASE_US + 4)],
    ],
    ids=["int", "float", "text", "mixed"],
)  # fmt: skip
def test_times_may_be_of_any_type(read: Any, times: list[Any]) -> None:
    run = read(*({**kernel("k", 0, 2), "ts": time, "dur": type(time)(2)} for time in times))
    assert run.table("kernels")["start_ns"].to_list() == [(BASE_US + 1) * 1000, (BASE_US + 4) * 1000]
    assert run.table("kernels")["end_ns"].to_list() == [(BASE_US + 3) * 1000, (BASE_US + 6) * 1000]


def test_times_in_ns_are_recognised(read: Any) -> None:
    run = read({**kernel("k", 0, 0), "ts": BASE_US * 1000 + 7, "dur": 13})
    assert run.table("kernels").select("start_ns", "end_ns").rows() == [(BASE_US * 1000 + 7, BASE_US * 1000 + 20)]


@pytest.mark.parametrize("base_first", [True, False])
def test_the_base_time_is_added_wherever_it_stands(tmp_path: Path, base_first: bool) -> None:
    base = {"baseTimeNanoseconds": 1_700_000_000_000_000_000}
    events = {"traceEvents": [{**kernel("k", 0, 5), "ts": 1365627862757.064}]}
    path = write(tmp_path / "rank0.json", {**base, **events} if base_first else {**events, **base})
    assert load([path]).table("kernels")["start_ns"].to_list() == [1_700_000_000_000_000_000 + 1_365_627_862_757_064]


def test_a_base_is_not_added_to_times_that_count_from_the_epoch(read: Any) -> None:
    run = read(kernel("k", 0, 5), baseTimeNanoseconds=1_700_000_000_000_000_000 + 9 * 10**17)
    assert run.table("kernels")["start_ns"].to_list() == [BASE_US * 1000]


def test_begin_and_end_events_become_spans_of_their_thread(read: Any) -> None:
    def edge(phase: str, at: int, name: str = "", tid: int = 1) -> dict[str, Any]:
        return {"ph": phase, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": BASE_US + at, "args": {}}

    run = read(
        edge("B", 0, "outer"), edge("B", 10, "inner"), edge("B", 5, "other", 2), edge("E", 20), edge("E", 50),
        edge("E", 9, tid=2), edge("E", 99), edge("B", 60, "never ended"),
    )  # fmt: skip
    ops = run.table("ops").sort("start_ns")
    assert list(zip(words(ops["name"]), ops["tid"], ops["end_ns"] - ops["start_ns"], strict=True)) == [
        ("outer", 1, 50_000), ("other", 2, 4_000), ("inner", 1, 10_000),
    ]  # fmt: skip
    assert run.coverage.dropped_records == 2


def test_spans_that_begin_and_end_in_different_chunks_are_joined(monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    monkeypatch.setattr("ddiag.ingest.stream.CHUNK_BYTES", 200)
    monkeypatch.setattr("ddiag.ingest.sources.READ_BYTES", 200)
    edges = [{"ph": "B", "cat": "cpu_op", "name": f"deep{k}", "pid": 1, "tid": 1, "ts": k} for k in range(30)]
    edges += [{"ph": "E", "pid": 1, "tid": 1, "ts": 100 - k} for k in range(30, 0, -1)]
    run = read(*edges)
    assert run.table("ops").height == 30
    assert run.coverage.dropped_records == 0


def test_memory_events_of_old_and_new_torch(read: Any) -> None:
    def memory(at: int, **args: Any) -> dict[str, Any]:
        return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": BASE_US + at, "args": args}

    new = {"Addr": 1, "Bytes": -512, "Total Allocated": 0, "Total Reserved": 2048, "Device Type": 1, "Device Id": 3}
    run = read(
        {**memory(0, **new), "cat": "cpu_instant_event"},
        memory(1, **{"Bytes": 4, "Device Type": 0, "Device Id": -1}),
        {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "x", "ts": BASE_US},
    )
    assert run.table("memory").drop("rank").rows() == [
        ("cuda:3", BASE_US * 1000, -512, 0, 2048),
        ("cpu", BASE_US * 1000 + 1000, 4, None, None),
    ]
    assert run.table("captures")["profile_memory"].to_list() == [True]


def test_counters_keep_each_series(read: Any) -> None:
    counter = {
        "ph": "C",
        "name": "GPU 0 Utilization",
        "pid": 0,
        "tid": 0,
        "ts": BASE_US,
        "args": {"GPU": 3.5, "x": "y", "b": True},
    }
    run = read(counter, op("a", 0, 1))
    assert run.table("counters").drop("rank").rows() == [("GPU 0 Utilization GPU", BASE_US * 1000, 3.5)]


def test_flow_and_unknown_phases_are_neither_rows_nor_dropped(read: Any) -> None:
    others = [
        {"ph": phase, "id": 1, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"} for phase in "stfbenNODvRPc"
    ]
    run = read(*others, op("a", 0, 1))
    assert run.table("ops").height == 1
    assert run.coverage.dropped_records == 0


def test_operators_carry_their_links_and_shapes(read: Any) -> None:
    run = read(
        op("aten::mm", 0, 5, **{"External id": 7, "Sequence number": 3, "Fwd thread id": 1, "Input Dims": [[2, 3]],
                                "Input type": ["float"]}),
        op("plain", 9, 1),
    )  # fmt: skip
    rows = run.table("ops").select("external_id", "sequence", "fwd_tid", "dims", "dtypes").rows()
    assert rows == [(7, 3, 1, "[[2, 3]]", '["float"]'), (-1, -1, -1, None, None)]


@pytest.mark.parametrize(
    ("name", "direction", "pinned"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "h2d", True), ("Memcpy DtoH (Device -> Pageable)", "d2h", False),
        ("Memcpy DtoD (Device -> Device)", "d2d", None), ("Memcpy PtoP (Device -> Device)", "p2p", None),
    ],
)  # fmt: skip
def test_copies_say_direction_and_pinning(read: Any, name: str, direction: str, pinned: bool | None) -> None:
    run = read(span("gpu_memcpy", name, 0, 5, 7, device=1, stream=7, bytes=64))
    row = run.table("copies").row(0, named=True)
    assert (row["direction"], row["pinned"], row["bytes"], row["device"]) == (direction, pinned, 64, 1)


def test_a_memset_is_a_memset_and_its_bytes_may_be_unknown(read: Any) -> None:
    row = read(span("gpu_memset", "Memset (Device)", 0, 5, 7, stream=7)).table("copies").row(0, named=True)
    assert (row["direction"], row["bytes"], row["device"]) == ("memset", None, -1)


def test_the_main_thread_takes_the_steps_not_the_most_launches(read: Any) -> None:
    backward = [launch(20 + k, k, tid=77) for k in range(5)]
    run = read(span("user_annotation", "ProfilerStep#1", 0, 100, tid=10), launch(5, 90, tid=10), *backward)
    assert run.table("ranks")["main_tid"].to_list() == [10]
    assert read(launch(5, 90, tid=10), *backward).table("ranks")["main_tid"].to_list() == [77]


def test_without_steps_the_thread_of_the_optimizer_or_at_least_not_autograds_is_main(read: Any) -> None:
    backward = [launch(20 + k, k, tid=77) for k in range(5)]
    backward.append(op("autograd::engine::evaluate_function: MmBackward0", 0, 90, tid=77))
    optimizer = span("user_annotation", "Optimizer.step#SGD.step", 200, 9, tid=10)
    assert read(optimizer, *backward).table("ranks")["main_tid"].to_list() == [10]
    assert read(launch(5, 90, tid=12), *backward).table("ranks")["main_tid"].to_list() == [12]
    assert read(*backward).table("ranks")["main_tid"].to_list() == [77]


def test_threads_named_by_words_stay_apart(read: Any) -> None:
    tids = (
        read(op("a", 0, 1, tid="main"), op("b", 0, 1, tid="loader"), op("c", 2, 1, tid="main"))
        .table("ops")["tid"]
        .to_list()
    )
    assert tids[0] == tids[2] != tids[1]
    assert all(tid < -1 for tid in tids)


@pytest.mark.parametrize(
    ("top", "events", "kind"),
    [
        ({}, [kernel("k", 0, 1)], "cuda"),
        ({"roctracer_version": 4}, [kernel("k", 0, 1)], "rocm"),
        ({"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X"}]}, [kernel("k", 0, 1)], "rocm"),
        ({}, [launch(0, 1, "hipLaunchKernel")], "rocm"),
        ({}, [span("xpu_runtime", "zeLaunch", 0, 1), span("kernel", "k", 0, 1)], "xpu"),
        ({}, [op("a", 0, 1)], "cpu"),
    ],
)
def test_the_kind_of_device_is_told(read: Any, top: dict[str, Any], events: list[dict[str, Any]], kind: str) -> None:
    assert read(*events, **top).table("ranks")["device_kind"].to_list() == [kind]


def test_device_name_and_memory_are_those_of_the_device_used(read: Any) -> None:
    devices = [{"id": k, "name": f"GPU {k}", "totalGlobalMem": 1000 + k} for k in range(3)]
    run = read(span("kernel", "k", 0, 1, device=2, stream=7), deviceProperties=devices)
    assert run.table("ranks").select("device_name", "device_memory_bytes").rows() == [("GPU 2", 1002)]


def test_a_device_beyond_the_list_is_named_when_all_are_alike(read: Any) -> None:
    """ROCm: kernels on device 9 of a list of 0 … 7."""
    devices = [{"id": k, "name": "AMD Instinct MI300X", "totalGlobalMem": 1000} for k in range(2)]
    beyond = span("kernel", "k", 0, 1, device=9, stream=7)
    assert read(beyond, deviceProperties=devices).table("ranks")["device_name"].to_list() == ["AMD Instinct MI300X"]
    devices[0]["name"] = "another"
    assert read(beyond, deviceProperties=devices).table("ranks")["device_name"].to_list() == [None]


def test_versions_flags_and_host_are_kept(read: Any) -> None:
    info = {"backend": "nccl", "rank": 0, "world_size": 2, "nccl_version": "2.21.5"}
    run = read(op("a", 0, 1), with_stack=1, cuda_runtime_version=12040, host_name="n1", distributedInfo=info)
    capture = run.table("captures").row(0, named=True)
    assert (capture["with_stack"], capture["versions"]) == (True, "CUDA runtime 12.4, NCCL 2.21.5")
    assert run.table("ranks").select("host", "backend", "world_size").rows() == [("n1", "nccl", 2)]


def test_events_of_unknown_category_are_mentioned(read: Any) -> None:
    run = read(span("blink", "x", 0, 1), span("blink", "y", 0, 1), op("a", 0, 1))
    assert "unknown category left out: blink (2)" in run.coverage.inputs[0].note
    assert json.dumps(run.coverage.dropped_records) == "0"
