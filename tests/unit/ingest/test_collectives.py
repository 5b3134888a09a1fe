"""One row per call and rank, whichever of its spans the trace holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ddiag.ingest import load
from ddiag.ingest.calls import CallMeta, describe
from ddiag.ingest.events import CollectiveArgs
from tests.unit.ingest.kineto_text import BASE_US, collective_args, kernel, launch, op, span, trace, write

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture
def calls(tmp_path: Path) -> Any:
    def calls(*events: dict[str, Any], **top: Any) -> list[dict[str, Any]]:
        return load([write(tmp_path / "rank0.json", trace(*events, **top))]).table("collectives").to_dicts()

    return calls


def test_the_kernel_is_the_row_and_its_arguments_describe_it(calls: Any) -> None:
    (row,) = calls(
        op("c10d::allreduce_", 0, 60),
        op("record_param_comms", 5, 50, **{"External id": 9, **collective_args()}),
        span("user_annotation", "nccl:all_reduce", 10, 40),
        launch(20, 4),
        kernel(NCCL, 100, 300, 20, 4, **{"External id": 9, **collective_args()}),
        span("gpu_user_annotation", "nccl:all_reduce", 100, 300, 20),
    )
    expected = {
        "rank": 0, "group": "0", "op": "all_reduce", "seq": 0, "dtype": "Float", "bytes_in": 4000, "bytes_out": 4000,
        "group_size": 2, "stream": 20, "source": "kernel", "name": NCCL, "peer": None,
        "start_ns": (BASE_US + 100) * 1000, "end_ns": (BASE_US + 400) * 1000, "enqueue_ns": (BASE_US + 20) * 1000,
        "external_id": 9,
    }  # fmt: skip
    assert {key: row[key] for key in expected} == expected


def test_a_bare_kernel_takes_its_description_from_the_operator_with_its_external_id(calls: Any) -> None:
    record = op("record_param_comms", 5, 50, tid=77, **{"External id": 9, **collective_args("allgather", group="tp")})
    (row,) = calls(record, kernel("ncclDevKernel_Generic(x)", 100, 9, 20, 4, **{"External id": 9}))
    assert (row["op"], row["group"], row["bytes_in"], row["enqueue_ns"]) == (
        "all_gather", "tp", 4000, (BASE_US + 5) * 1000,
    )  # fmt: skip


def test_without_ids_the_spans_around_the_launch_describe_it(calls: Any) -> None:
    """torch 1.11 … 2.2: nothing but names and shapes, on the launching thread."""
    shape = {"Input Dims": [[1000]], "Input type": ["float"]}
    (row,) = calls(
        op("record_param_comms", 5, 50, **{"External id": 9}),
        span("user_annotation", "nccl:all_to_all", 10, 40, **shape),
        launch(20, 4),
        op("record_param_comms", 0, 90, tid=55, **{"External id": 8}),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 100, 9, 20, 4, **{"External id": 4}),
    )
    assert (row["op"], row["dtype"], row["bytes_in"], row["bytes_out"]) == ("all_to_all", "float", 4000, None)
    assert (row["external_id"], row["group"], row["group_size"]) == (9, "unknown", None)


def test_a_span_that_ended_before_the_launch_does_not_describe_it(calls: Any) -> None:
    (row,) = calls(op("record_param_comms", 0, 10, **collective_args()), launch(20, 4), kernel(NCCL, 30, 5, 20, 4))
    assert (row["group"], row["bytes_in"], row["op"]) == ("unknown", None, "all_reduce")


def test_the_only_group_of_the_job_is_the_group_of_an_undescribed_call(calls: Any) -> None:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    info = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": groups}
    (row,) = calls(kernel(NCCL, 0, 5), distributedInfo=info)
    assert (row["group"], row["group_size"]) == ("0", 2)
    info["pg_config"] = [*groups, {"pg_name": "1", "pg_desc": "tp", "pg_size": 2, "ranks": [0, 1]}]
    assert calls(kernel(NCCL, 0, 5), distributedInfo=info)[0]["group"] == "unknown"


def test_calls_without_any_kernel_are_host_calls_without_the_waits(calls: Any) -> None:
    """World size 1, or a CPU-only profile of an NCCL job."""
    rows = calls(
        op("c10d::allreduce_", 0, 60),
        op("record_param_comms", 5, 50, **collective_args()),
        span("user_annotation", "nccl:all_reduce", 10, 40),
        op("record_param_comms", 70, 5, **collective_args("wait", 0)),
        kernel("gemm", 0, 1),
    )
    assert [(row["source"], row["op"], row["stream"], row["name"]) for row in rows] == [
        ("host", "all_reduce", -1, "record_param_comms")
    ]


def test_undescribed_host_calls_come_from_the_backend_spans(calls: Any) -> None:
    rows = calls(
        op("record_param_comms", 5, 50),
        span("user_annotation", "nccl:all_reduce", 10, 40),
        op("record_param_comms", 70, 5),
    )
    assert [(row["op"], row["name"]) for row in rows] == [("all_reduce", "nccl:all_reduce")]


def gloo(name: str, start: float, dur: float, tid: int = 90, **args: Any) -> dict[str, Any]:
    return span("user_annotation", f"gloo:{name}", start, dur, tid, **args)


def test_a_gloo_call_is_the_span_of_its_worker_thread_issued_by_the_c10d_operator(calls: Any) -> None:
    rows = calls(
        op("c10d::allreduce_", 0, 5, **{"External id": 1}),
        op("c10d::allreduce_", 10, 5, **{"External id": 2}),
        gloo("all_reduce", 30, 500, 91, **{"Input Dims": [[50]], "Input type": ["double"]}),
        gloo("all_reduce", 20, 900, 90, **{"Input Dims": [[10]], "Input type": ["float"]}),
        distributedInfo={"backend": "gloo", "rank": 0, "world_size": 2},
    )
    assert [(row["seq"], row["bytes_in"], row["external_id"], row["enqueue_ns"] // 1000 - BASE_US) for row in rows] == [
        (0, 40, 1, 0), (1, 400, 2, 10),
    ]  # fmt: skip
    assert {row["source"] for row in rows} == {"host"}


def test_order_of_issue_not_of_start_numbers_the_calls(calls: Any) -> None:
    rows = calls(
        launch(0, 1), launch(10, 2), launch(20, 3),
        kernel(NCCL, 100, 5, 20, 1, **collective_args(elements=1)),
        kernel(NCCL, 300, 5, 21, 2, **collective_args(elements=2)),
        kernel(NCCL, 200, 5, 20, 3, **collective_args(elements=3)),
    )  # fmt: skip
    assert {row["bytes_in"] // 4: row["seq"] for row in rows} == {1: 0, 2: 1, 3: 2}


def test_a_kernel_launched_before_the_capture_comes_before_the_next_of_its_stream(calls: Any) -> None:
    rows = calls(
        launch(0, 8),
        kernel(NCCL, 50, 100, 20, 7, **collective_args(elements=1)),
        kernel(NCCL, 200, 100, 20, 8, **collective_args(elements=2)),
    )
    assert {row["bytes_in"] // 4: row["seq"] for row in rows} == {1: 0, 2: 1}


def test_groups_are_numbered_apart(calls: Any) -> None:
    rows = calls(*(kernel(NCCL, k * 10, 5, 20, **collective_args(group=group)) for k, group in enumerate("abab")))
    assert [(row["group"], row["seq"]) for row in rows] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_gloo_performing_one_collective_by_another_is_what_was_asked_for(calls: Any) -> None:
    (row,) = calls(op("c10d::_reduce_scatter_base_", 0, 5), gloo("all_reduce", 20, 90))
    assert row["op"] == "reduce_scatter"


def test_a_mixed_job_keeps_gloo_calls_beside_the_kernels(calls: Any) -> None:
    rows = calls(
        op("c10d::allreduce_", 0, 60),
        op("record_param_comms", 5, 50, **collective_args()),
        launch(20, 4),
        kernel(NCCL, 100, 300, 20, 4, **collective_args()),
        op("c10d::allreduce_", 70, 5, **{"External id": 70}),
        gloo("all_reduce", 80, 100),
    )
    assert [(row["source"], row["external_id"]) for row in rows] == [("host", 70), ("kernel", -1)]


@pytest.mark.parametrize(("name", "key"), [("send", "Dst Rank"), ("recv", "Src Rank")])
def test_point_to_point_says_its_peer(calls: Any, name: str, key: str) -> None:
    (row,) = calls(kernel("ncclDevKernel_SendRecv", 0, 5, **collective_args(name, **{key: 5})))
    assert (row["op"], row["peer"]) == (name, 5)


@pytest.mark.parametrize("kernel_name", ["multimem_all_reduce_kernel", "ncclKernel_AllReduce_RING_LL_Sum_float"])
def test_kernels_of_any_library_are_rows(calls: Any, kernel_name: str) -> None:
    assert [row["op"] for row in calls(kernel(kernel_name, 0, 5))] == ["all_reduce"]


def test_a_cut_list_of_ranks_is_rebuilt(tmp_path: Path) -> None:
    cut = {"Process Group Ranks": "[4, 6, ..., 130]", "Global rank start": 4, "Global rank stride": 2}
    long = collective_args(**{**cut, "Group size": 64, "Process Group Name": "dp"})
    run = load([write(tmp_path / "rank0.json", trace(kernel(NCCL, 0, 5, **long)))])
    (group,) = run.table("groups").to_dicts()
    assert (group["group"], group["size"], group["ranks"]) == ("dp", 64, list(range(4, 132, 2)))


def test_a_cut_list_that_cannot_be_rebuilt_is_unknown_not_wrong() -> None:
    meta = describe(CollectiveArgs(collective="allreduce", group_ranks="[0, 1, ...]", group_size=64, rank_stride=-1))
    assert meta.members is None


@pytest.mark.parametrize(
    ("dtype", "elements", "size"),
    [("BFloat16", 10, 20), ("Float", 10, 40), ("Float8_e4m3fn", 10, 10), ("Mystery", 10, None), ("Float", -1, None)],
)
def test_bytes_are_elements_times_element_size_or_unknown(dtype: str, elements: int, size: int | None) -> None:
    meta = describe(CollectiveArgs(collective="allreduce", dtype=dtype, in_elements=elements))
    assert isinstance(meta, CallMeta)
    assert meta.bytes_in == size


def test_the_recorded_gloo_training_has_every_call_once_on_both_ranks() -> None:
    """torch 2.13: per step two bucket all-reduces, one reduce_scatter, one barrier; two steps."""
    data = Path(__file__).parent / "data"
    run = load([str(data / "gloo_ddp_rank0.json.gz"), str(data / "gloo_ddp_rank1.json.gz")])
    step = [("all_reduce", 16640), ("all_reduce", 16640), ("reduce_scatter", 2000), ("barrier", None)]
    for rank in (0, 1):
        mine = run.table("collectives").filter(pl.col("rank") == rank).sort("seq")
        assert list(mine.select("op", "bytes_in").iter_rows()) == step * 2
        assert mine["enqueue_ns"].null_count() == 0
        assert ((mine["start_ns"] - mine["enqueue_ns"]) > 0).all()
    assert run.table("groups").select("group", "size").rows() == [("0", 2)]
    assert run.coverage.steps == (2, 3)
