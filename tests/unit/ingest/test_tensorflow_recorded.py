"""Real TensorFlow profiles, in both formats, to tables and to a diagnosis."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from ddiag.analysis import derive
from ddiag.api import diagnose
from ddiag.ingest import load
from ddiag.model.run import Run
from ddiag.model.signals import InputWait, StepBudget

DATA = Path(__file__).parent / "data" / "tensorflow"
XPLANE, VIEWER = "xplane.pb.gz", "trace.json.gz"
FORMATS = [XPLANE, VIEWER]


def read(folder: str, form: str) -> Run:
    return load([str(DATA / folder / f"node-*.{form}")])


def shown(run: Run, table: str, *columns: str) -> pl.DataFrame:
    """Columns of a table that both formats must agree on, lengths in place of times."""
    frame = run.table(table).with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("length_ns"))
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String)).select(columns).sort(columns)


@pytest.mark.parametrize("form", FORMATS)
def test_a_worker_is_known_by_its_devices(form: str) -> None:
    run = read("slow_map", form)
    ranks = run.table("ranks").sort("rank")
    assert ranks["rank"].to_list() == [0, 1]
    assert ranks["host"].to_list() == ["node-a", "node-b"]
    assert ranks["rank_known"].all()
    assert set(ranks["world_size"]) == {2}
    assert set(ranks["backend"]) == {"grpc"}
    assert set(ranks["device_kind"]) == {"cpu"}
    assert set(run.table("captures")["framework"]) == {"tensorflow"}
    assert run.coverage.ranks_missing == ()
    assert run.coverage.dropped_records == 0


def test_both_formats_tell_the_same() -> None:
    own, viewed = read("slow_map", XPLANE), read("slow_map", VIEWER)
    assert shown(own, "steps", "rank", "step", "length_ns").equals(shown(viewed, "steps", "rank", "step", "length_ns"))
    columns = ("rank", "group", "op", "group_size", "source", "length_ns")
    assert shown(own, "collectives", *columns).equals(shown(viewed, "collectives", *columns))
    operators = [
        shown(run, "ops", "rank", "kind", "name", "length_ns").filter(pl.col("kind") == "op") for run in (own, viewed)
    ]
    assert operators[0].height > 500
    assert operators[0].equals(operators[1])


def test_only_the_profilers_own_file_has_a_clock_that_hosts_share() -> None:
    own, viewed = read("slow_map", XPLANE), read("slow_map", VIEWER)
    assert own.coverage.notes == ()
    assert any("cannot be compared" in note for note in viewed.coverage.notes)
    ends = own.table("collectives").select("rank", "end_ns").sort("end_ns")
    one, other = (ends.filter(pl.col("rank") == rank) for rank in (0, 1))
    apart = one.join_asof(other, on="end_ns", strategy="nearest", coalesce=False)
    apart_ms = (apart["end_ns"] - apart["end_ns_right"]).abs() / 1e6
    assert apart_ms.quantile(0.5) < 2  # an all-reduce ends on all members at about the same time


def test_a_recording_and_its_viewer_copy_count_once(tmp_path: Path) -> None:
    for path in (DATA / "slow_map").iterdir():
        shutil.copy(path, tmp_path)
    both, own = load([str(tmp_path)]), read("slow_map", XPLANE)
    assert {name: table.height for name, table in both.tables.items()} == {
        name: table.height for name, table in own.tables.items()
    }
    copies = [one for one in both.coverage.inputs if one.path.endswith(VIEWER)]
    assert [one.note for one in copies] == ["left out: the same recording is read from its own file"] * 2
    assert not any("not all of one job" in note for note in both.coverage.notes)


@pytest.mark.parametrize("form", FORMATS)
def test_the_planted_delay_is_the_first_finding(form: str) -> None:
    run = read("slow_map", form)
    wait, budget = derive(run).get(InputWait), derive(run).get(StepBudget)
    assert wait is not None
    assert budget is not None
    assert 45 < wait.wait_ms < 65  # 60 ms were planted; some of it passes while the step runs
    assert budget.n_steps >= 6
    first = diagnose(run).findings[0]
    assert first.rule == "DD101"
    assert "tf.data" in first.fix[0]


def test_what_tf_data_runs_is_no_compute() -> None:
    budget = derive(read("slow_map", XPLANE)).get(StepBudget)
    assert budget is not None
    assert budget.table.filter("steady")["compute_ms"].max() < 10  # the map function took 60 ms of each step


def test_keras_waits_for_input_on_a_thread_of_a_pool() -> None:
    run = read("keras_fit", XPLANE)
    assert run.coverage.steps == (6, 7, 8, 9, 10, 11)
    assert run.table("collectives").height == 2 * run.table("collectives")["seq"].n_unique()
    first = diagnose(run).findings[0]
    assert first.rule == "DD101"
    assert first.culprits.where is not None
    assert first.culprits.where.startswith("IteratorGetNext")


@pytest.mark.parametrize("form", FORMATS)
def test_gpu_time_counts_once(form: str) -> None:
    run = read("gpu_form", form)
    kernels = run.table("kernels").with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
    times = dict(kernels.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("ns").sum()).iter_rows())
    assert times == {"compute": 6 * 3 * 480_000, "communication": 6 * 700_000}
    assert set(kernels["stream"]) == {14, 24}
    assert set(kernels["device"]) == {0}
    assert run.table("ranks")["device_kind"].to_list() == ["cuda"]


@pytest.mark.parametrize("form", FORMATS)
def test_gpu_copies_have_size_and_kind_of_memory(form: str) -> None:
    copies = read("gpu_form", form).table("copies").with_columns(pl.col("direction").cast(pl.String))
    found = copies.select("direction", "pinned", "bytes").unique().sort("bytes")
    assert found.rows() == [("memset", None, 4096), ("h2d", False, 1048576)]


@pytest.mark.parametrize("form", FORMATS)
def test_collectives_on_gpus_are_the_kernels_alone(form: str) -> None:
    run = read("gpu_form", form)
    calls = run.table("collectives")
    assert calls.height == 6
    assert set(calls["source"]) == {"kernel"}
    assert set(calls["op"]) == {"all_reduce"}
    assert set(calls["group_size"]) == {2}
    assert run.table("ranks")["backend"].to_list() == ["nccl"]


def test_driver_calls_lead_to_what_they_launched() -> None:
    run = read("gpu_form", XPLANE)
    launches = run.table("launches").with_columns(pl.col("kind").cast(pl.String))
    assert dict(launches["kind"].value_counts().iter_rows()) == {"launch": 24, "copy": 6, "memset": 6}
    assert set(run.table("kernels")["correlation"]) <= set(launches["correlation"])
    assert run.table("collectives")["enqueue_ns"].null_count() == 0
    assert run.table("ranks")["device_memory_bytes"].to_list() == [85_045_739_520]


def test_allocations_of_the_gpu_are_read() -> None:
    memory = read("gpu_form", XPLANE).table("memory")
    assert memory.height == 12
    assert set(memory["device"]) == {"cuda:0"}
    assert memory["bytes"].sum() == 0
    assert memory["reserved_bytes"].null_count() == 12


@pytest.mark.parametrize("form", FORMATS)
def test_an_idle_gpu_is_explained_by_the_iterator(form: str) -> None:
    wait = derive(read("gpu_form", form)).get(InputWait)
    assert wait is not None
    assert wait.stall_ms == pytest.approx(6.0, abs=0.2)
