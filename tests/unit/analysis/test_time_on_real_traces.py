"""The time budget on real traces, against figures computed independently and by HTA 0.5.0 (where it is right)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from ddiag.analysis import derive
from ddiag.analysis.activity import activity
from ddiag.analysis.device_work import device_work
from ddiag.analysis.intervals import intersect, total
from ddiag.analysis.steps import find_steps
from ddiag.ingest import load
from ddiag.model.run import Run
from ddiag.model.signals import HostLaunch, InputWait, PythonOverhead, Signals, StepBudget, SyncPoints
from tests.shared import SHARED, shared_data

RESNET = ("pytorch+kineto", "tb_plugin", "samples")
MI300_DDP = ("AMD-AGI+TraceLens", "mi300", "resnet_act_checkpoint.json.gz")
DLRM = ("facebookresearch+param", "dlrm_kineto_8rank")
TOLERANCE_US = 0.1
HTA_DLRM = {  # rank: idle, compute, neither, window (us), overlap (%); get_temporal_breakdown, get_comm_comp_overlap
    0: (6419, 1034, 5556, 13009, 4.50),
    1: (6428, 1246, 11075, 18749, 2.47),
    2: (7046, 1068, 3236, 11350, 7.88),
    3: (8145, 1240, 9468, 18853, 3.31),
    4: (8887, 1126, 6576, 16589, 0.56),
    5: (9121, 1041, 6230, 16392, 0.64),
    6: (7051, 1051, 3308, 11410, 7.56),
    7: (8308, 1059, 1600, 10967, 9.51),
}


@cache
def read(*parts: str) -> Run:
    return load([str(shared_data(*parts))], jobs=1)


@cache
def signals(*parts: str) -> Signals:
    return derive(read(*parts))


def budget(*parts: str) -> StepBudget:
    found = signals(*parts).get(StepBudget)
    assert found is not None
    return found


def expected_sums() -> list[tuple[str, dict[str, float]]]:
    """The oracle's traces that have device events."""
    path = SHARED / "data" / "independent_expected.json"
    return sorted(json.loads(path.read_text()).items()) if path.exists() else []


@pytest.mark.parametrize(
    ("trace", "expected"), expected_sums(), ids=lambda value: Path(value).name[:40] if isinstance(value, str) else ""
)
def test_interval_sums_equal_the_independent_ones(trace: str, expected: dict[str, float]) -> None:
    (act,) = activity(load([str(shared_data(*trace.split("/")))], jobs=1)).values()
    assert act.on_device
    got = {
        "window_us": (act.busy[-1, 1] - act.busy[0, 0]) / 1e3,
        "busy_us": total(act.busy) / 1e3,
        "comm_us_broad_pattern": total(act.comm) / 1e3,
        "overlap_us_broad": total(intersect(act.comm, act.compute)) / 1e3,
    }
    if expected["comm_us"] == expected["comm_us_broad_pattern"]:  # else its compute holds communication it missed
        got["comp_us"] = total(act.compute) / 1e3
    assert got == pytest.approx({name: expected[name] for name in got}, abs=TOLERANCE_US)


def test_dlrm_equals_htas_temporal_breakdown_and_overlap() -> None:
    for rank, act in activity(read(*DLRM)).items():
        window = (act.busy[-1, 1] - act.busy[0, 0]) / 1e3
        busy, compute = total(act.busy) / 1e3, total(act.compute) / 1e3
        overlap = 100 * total(intersect(act.comm, act.compute)) / total(act.comm)
        got = (window - busy, compute, busy - compute, window, round(overlap, 2))
        assert got == pytest.approx(HTA_DLRM[rank], abs=TOLERANCE_US)


def test_dlrm_equals_htas_host_wait_of_one_stream() -> None:
    work = device_work(read(*DLRM)).filter((pl.col("rank") == 0) & (pl.col("stream") == 7))
    before = pl.col("end_ns").shift(1)
    gaps = work.select((pl.col("start_ns") - before).alias("gap"), (pl.col("launch_start_ns") > before).alias("late"))
    by_cause = {
        late: gap / 1e3 for late, gap in gaps.drop_nulls().group_by("late").agg(pl.col("gap").sum()).iter_rows()
    }
    assert by_cause == {True: 11_448, False: 123}


@pytest.mark.parametrize(
    "parts",
    [(*RESNET, "resnet50_num_workers_0"), (*RESNET, "resnet50_num_workers_4"), MI300_DDP, DLRM],
    ids=lambda parts: parts[-1],
)
def test_parts_sum_to_the_step_and_steps_touch(parts: tuple[str, ...]) -> None:
    table = budget(*parts).table
    summed = table.select(pl.sum_horizontal(pl.col("^.*_ms$").exclude("step_ms", "overlapped_comm_ms"))).to_series()
    assert (summed - table["step_ms"]).abs().max() < 1e-6
    for _, steps in table.group_by("rank"):
        ordered = steps.sort("start_ns")
        assert ordered["start_ns"][1:].to_list() == ordered["end_ns"][:-1].to_list()


def test_resnet_without_loader_workers_waits_for_input_and_its_twin_does_not() -> None:
    without, with_workers = ((*RESNET, f"resnet50_num_workers_{n}") for n in (0, 4))
    waits = [signals(*parts).get(InputWait) for parts in (without, with_workers)]
    assert all(wait is not None for wait in waits)
    assert [wait.single_process for wait in waits if wait] == [True, False]
    assert [round(wait.wait_ms, 1) for wait in waits if wait] == [69.3, 1.4]
    assert [round(wait.stall_ms, 1) for wait in waits if wait] == [59.3, 1.2]
    assert [round(wait.stall_share, 3) for wait in waits if wait] == [0.334, 0.008]
    assert [round(budget(*parts).step_ms, 1) for parts in (without, with_workers)] == [177.4, 126.7]
    overheads = [signals(*parts).get(PythonOverhead) for parts in (without, with_workers)]
    assert [overhead.dataloader_workers for overhead in overheads if overhead] == [0, None]


def test_mi300_steps_follow_the_device_that_lags_two_steps_behind() -> None:
    windows = find_steps(read(*MI300_DDP)).table
    assert windows["step"].to_list() == [15, 16, 17]
    lag_ms = (windows["start_ns"] - windows["host_start_ns"]) / 1e6
    assert lag_ms.to_list() == pytest.approx([30.1, 32.2, 35.3], abs=0.1)
    found = budget(*MI300_DDP)
    assert found.table["step_ms"].to_list() == pytest.approx([18.98, 18.98, 18.55], abs=0.01)
    assert found.share("comm_transfer_ms") == pytest.approx(0.62, abs=0.01)
    assert found.share("idle_ms") < 0.01
    launch = signals(*MI300_DDP).get(HostLaunch)
    assert launch is not None
    assert launch.launch_gap_ms == 0


def test_v100_ddp_with_a_kernel_launch_per_parameter_is_bound_by_launches() -> None:
    parts = ("facebookresearch+HolisticTraceAnalysis", "df_index_resolver", "df_index_resolver.json.gz")
    launch = signals(*parts).get(HostLaunch)
    assert launch is not None
    assert launch.launches_per_step == 3874
    assert launch.median_kernel_us == 8
    assert launch.launch_gap_share == pytest.approx(0.41, abs=0.01)
    assert launch.host_busy_share > 0.9
    assert launch.blocking_launch_share == 0


def test_a_hip_graph_is_one_launch() -> None:
    parts = ("AMD-AGI+TraceLens", "inference", "sglang_decode", "sglang_Qwen3-8B_decode.json.gz")
    launch = signals(*parts).get(HostLaunch)
    assert launch is not None
    assert (launch.launches_per_step, launch.graph_launches_per_step) == (12, 1)
    assert launch.kernel_wait_ms < 1


def test_dlrm_masked_indexing_stalls_the_device() -> None:
    sync = signals(*DLRM).get(SyncPoints)
    assert sync is not None
    worst = sync.table.sort("stall_ms", descending=True).row(0, named=True)
    assert (worst["rank"], worst["op"]) == (3, "aten::index")
    assert worst["stall_ms"] == pytest.approx(1.57, abs=0.01)


def test_item_in_each_microbatch_lets_the_device_run_dry_for_6_ms() -> None:
    case = SHARED / "cases" / "63-kineto-item-sync-each-microbatch" / "input.json"
    if not case.exists():
        pytest.skip("../shared is not there")
    found = derive(load([str(case)], jobs=1))
    sync, launch = found.get(SyncPoints), found.get(HostLaunch)
    assert sync is not None
    assert launch is None  # no launch was recorded, so nobody can tell who was late
    row = sync.table.row(0, named=True)
    assert (sync.table.height, row["op"], row["count_per_step"]) == (1, "aten::item", 3)
    assert row["stall_ms"] == pytest.approx(3 * 6)
    assert sync.stall_share == pytest.approx(18 / 234)


def test_gloo_rank_of_300_waits_in_collectives() -> None:
    parts = ("facebookresearch+HolisticTraceAnalysis", "history", "cpu_only_full")
    found = budget(*parts)
    assert not found.on_device
    assert found.n_steps == 5
    assert found.share("comm_transfer_ms") > 0.8
    assert found.mean("sync_ms") == found.mean("idle_ms") == 0
