"""TensorFlow profiles: whose they are, what counts as a step, an operator, a collective; what is refused and why."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest

from ddiag.errors import InputError
from ddiag.ingest import load, tf_json
from ddiag.model.run import Run
from tests.unit.ingest.tf_profile import Span, kernel, operator, span, step, text, write, xspace

RUN = "plugins/profile/2026_01_31_12_00_00"
Write = Callable[[Path], str]


def training(steps: int = 3) -> list[Span]:
    """A healthy worker: every 100 µs a marked step with one operator."""
    return [
        one
        for n in range(steps)
        for one in (step(n, 100 * n, 90), operator("model/dense/MatMul:MatMul", 100 * n + 20, 50))
    ]


def as_viewer(tmp_path: Path, *spans: Span) -> Run:
    return load([write(tmp_path / "node.trace.json", *spans)])


def as_xplane(tmp_path: Path, *spans: Span) -> Run:
    path = tmp_path / "node.xplane.pb"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(xspace(*spans))
    return load([str(path)])


def kinds(run: Run) -> dict[str, str]:
    return dict(run.table("ops").select(pl.col("name", "kind").cast(pl.String)).iter_rows())


both = pytest.mark.parametrize("read", [as_viewer, as_xplane])
Read = Callable[..., Run]


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        (f"logs/worker-3/{RUN}/node.trace.json", 3),
        (f"logs/worker_3/train/{RUN}/node.trace.json", 3),
        (f"logs/rank3/{RUN}/node.trace.json", 3),
        (f"logs/{RUN}/mnist-worker-3.trace.json", 3),
        (f"logs/{RUN}/node7.trace.json", None),
        ("node-12.trace.json", None),
    ],
)
def test_the_rank_in_the_names_of_file_and_folders(tmp_path: Path, path: str, rank: int | None) -> None:
    found = load([write(tmp_path / path, *training())]).table("ranks").row(0, named=True)
    assert found["rank_known"] == (rank is not None)
    assert found["rank"] == (rank or 0)


@both
def test_the_worker_index_in_its_devices_decides(tmp_path: Path, read: Read) -> None:
    call = span("tf_Compute/5", "RemoteCallOp", 10, 5, device="/job:worker/replica:0/task:2/device:CPU:0")
    assert read(tmp_path / "worker-1", *training(), call).table("ranks")["rank"].to_list() == [2]


def test_devices_of_several_tasks_do_not_say_whose_the_profile_is(tmp_path: Path) -> None:
    calls = [
        span("tf_Compute/5", "RemoteCallOp", 10, 5, device=f"/job:worker/replica:0/task:{task}/device:CPU:0")
        for task in (0, 1)
    ]
    assert as_viewer(tmp_path, *training(), *calls).table("ranks")["rank_known"].to_list() == [False]


def test_workers_nobody_numbered_are_told_how_to_be_known(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"logs/{RUN}/node-{host}.trace.json", *training()) for host in "ab"]
    run = load(paths)
    assert run.table("ranks").sort("rank")["host"].to_list() == ["node-b", "node-a"]
    assert run.table("ranks")["rank"].max() == -1
    assert any('"logs/worker-3"' in note for note in run.coverage.notes)


@both
def test_marks_are_steps_with_their_numbers(tmp_path: Path, read: Read) -> None:
    spans = [span("python", "train", 1000 * n, 900, step_num=7 + n, _r=1) for n in range(4)]
    run = read(tmp_path, *spans, operator("model/MatMul:MatMul", 10, 5))
    assert run.coverage.steps == (7, 8, 9, 10)
    steps = run.table("steps").sort("step")
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == [900_000] * 4


def test_evaluation_is_no_training_step(tmp_path: Path) -> None:
    evaluation = [span("python", f"test {n}", 1000 + 10 * n, 9, step_num=str(n)) for n in range(9)]
    assert as_viewer(tmp_path, *training(3), *evaluation).coverage.steps == (0, 1, 2)


@both
def test_without_marks_each_call_of_the_train_function_is_a_step_with_its_fetch(tmp_path: Path, read: Read) -> None:
    spans = [
        one
        for n in range(4)
        for one in (
            span("python", "EagerLocalExecute: __inference_train_step_42", 1000 * n, 300),
            span("python", "EagerLocalExecute: IteratorGetNext", 1000 * n + 310, 600),
            operator("model/MatMul:MatMul", 1000 * n + 10, 200),
        )
    ]
    run = read(tmp_path, *spans)
    steps = run.table("steps").sort("step")
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == [1_000_000] * 3
    assert "each call of __inference_train_step_42 is taken as a step" in run.coverage.inputs[0].note


@both
def test_operators_are_compute_and_the_runtime_around_them_is_not(tmp_path: Path, read: Read) -> None:
    spans = [
        operator("model/dense/MatMul:MatMul", 0, 10),
        operator("sgd/CollectiveReduceV2:CollectiveReduceV2", 20, 10, line="collective_ops/1", instance_key=1),
        operator("IteratorGetNext:IteratorGetNext", 40, 10),
        span("tf_Compute/5", "ExecutorState::Process", 0, 100),
        span("tf_Compute/5", "ThreadpoolListener::Region", 0, 100),
        span("python", "EagerLocalExecute: IteratorGetNext", 0, 100),
    ]
    assert kinds(read(tmp_path, *spans)) == {
        "model/dense/MatMul:MatMul": "op",
        "sgd/CollectiveReduceV2:CollectiveReduceV2": "annotation",
        "IteratorGetNext:IteratorGetNext": "annotation",
        "ExecutorState::Process": "annotation",
        "EagerLocalExecute: IteratorGetNext": "annotation",
    }


@both
def test_operators_of_map_functions_make_input_wherever_they_run(tmp_path: Path, read: Read) -> None:
    spans = [
        operator("decode/Cast:Cast", 0, 10, line="tf_data_private_threadpool/4"),
        span("tf_data_iterator_resource/3", "InstantiatedCapturedFunction::Run", 0, 90, id=77),
        span("tf_Compute/5", "ExecutorState::Process", 5, 50, id=77, iter_num=0),
        operator("map/Resize:ResizeBilinear", 6, 10),
        span("tf_Compute/5", "FunctionRun", 20, 20, id=78),
        span("tf_Compute/6", "ExecutorState::Process", 30, 20, id=78, iter_num=0),
        operator("inner/Mul:Mul", 32, 5, line="tf_Compute/6"),
        span("tf_Compute/6", "ExecutorState::Process", 60, 20, id=99, iter_num=0),
        operator("model/Mul:Mul", 62, 5, line="tf_Compute/6"),
    ]
    found = kinds(read(tmp_path, *spans))
    assert {name: kind for name, kind in found.items() if name.count(":") == 1} == {
        "decode/Cast:Cast": "annotation",
        "map/Resize:ResizeBilinear": "annotation",
        "inner/Mul:Mul": "annotation",
        "model/Mul:Mul": "op",
    }


@both
def test_python_frames_are_called_as_elsewhere(tmp_path: Path, read: Read) -> None:
    spans = [
        span("python", "$train.py:12 main", 0, 100),
        span("python", "$gc collect", 10, 20),
        operator("model/Mul:Mul", 40, 5),
    ]
    run = read(tmp_path, *spans)
    assert kinds(run)["train.py(12): main"] == "python"
    assert kinds(run)["<built-in function collect>"] == "python"
    assert run.table("captures")["with_stack"].to_list() == [True]


@both
def test_a_collective_is_the_span_that_carries_it_out(tmp_path: Path, read: Read) -> None:
    name = "sgd/CollectiveReduceV2:CollectiveReduceV2"
    spans = [
        operator(name, 0, 3),
        operator(name, 5, 40, line="collective_ops/1", instance_key=4, group_key=1),
        operator(
            "bn/CollectiveGatherV2:CollectiveGatherV2", 60, 7, line="collective_ops/1", instance_key=5, group_key=2
        ),
        span("collective_ops/1", "CollectiveExecutor::CompleteParams", 4, 1, group_key=1, group_size=8),
        span("collective_ops/1", "CollectiveExecutor::CompleteParams", 50, 1, group_key=2, group_size=4),
    ]
    run = read(tmp_path, *spans)
    calls = run.table("collectives").select("group", "op", "group_size", "source")
    assert calls.rows() == [("1", "all_reduce", 8, "host"), ("2", "all_gather", 4, "host")]
    assert run.table("groups").select("group", "size").rows() == [("1", 8), ("2", 4)]
    assert run.table("ranks")["world_size"].to_list() == [8]


@both
def test_a_group_counts_replicas_and_the_world_workers(tmp_path: Path, read: Read) -> None:
    spans = [
        *training(),
        kernel("gemm", 0, 5, device=0),
        kernel("gemm", 0, 5, device=1),
        span("collective_ops/1", "CollectiveExecutor::CompleteParams", 4, 1, group_key=1, group_size=8),
    ]
    run = read(tmp_path, *spans)
    assert run.table("ranks")["world_size"].to_list() == [4]
    assert "one process drives 2 GPUs" in run.coverage.inputs[0].note


@both
def test_lines_that_repeat_the_streams_do_not_count(tmp_path: Path, read: Read) -> None:
    derived = ("TensorFlow Ops", "XLA Ops", "XLA Modules", "Steps", "Framework Ops - from #7", "Launch Stats")
    spans = [*training(), kernel("gemm", 0, 5), *(kernel("gemm", 0, 5, line=line) for line in derived)]
    assert read(tmp_path, *spans).table("kernels").height == 1


@both
def test_a_driver_call_named_after_its_kernel_is_a_launch(tmp_path: Path, read: Read) -> None:
    spans = [
        *training(),
        span("tf_Compute/5", "my_kernel", 1, 2, correlation_id=9),
        span("tf_Compute/5", "MemcpyHtoD", 4, 2, correlation_id=10),
        kernel("my_kernel", 5, 5, correlation_id=9),
        kernel("MemcpyH2D", 12, 5, memcpy_details="kind:pinned size:64 dest:0 async:1", correlation_id=10),
    ]
    run = read(tmp_path, *spans)
    calls = run.table("launches").select(pl.col("name", "kind").cast(pl.String), "correlation")
    assert calls.rows() == [("my_kernel", "launch", 9), ("MemcpyHtoD", "copy", 10)]
    assert run.table("copies").select("bytes", "pinned").rows() == [(64, True)]


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        load([str(path)])
    return str(refused.value)


def test_a_tpu_is_not_judged_by_its_host(tmp_path: Path) -> None:
    tpu = span("XLA Ops", "fusion.1", 0, 5, plane="/device:TPU:0")
    path = write(tmp_path / "node.trace.json", *training(), tpu)
    assert "a profile of /device:TPU:0: of TensorFlow's devices only GPUs and CPUs" in refusal(Path(path))


def test_several_hosts_in_one_file_are_refused(tmp_path: Path) -> None:
    one, other = text(training(), host="node-a"), text(training(), host="node-b").replace("701", "702")
    merged = one.replace("{}]}", other.split('"traceEvents":[\n')[1])
    (tmp_path / "merged.trace.json").write_text(merged)
    assert "holds 2 hosts in one trace (node-a, node-b …)" in refusal(tmp_path / "merged.trace.json")


def test_one_named_host_is_fine(tmp_path: Path) -> None:
    run = load([write(tmp_path / "node.trace.json", *training(), host="node-a")])
    assert run.table("steps").height == 3


def test_the_viewers_limit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_json, "VIEWER_LIMIT", 6)
    assert "keeps at most 6, the earliest" in as_viewer(tmp_path, *training(3)).coverage.inputs[0].note
    assert as_viewer(tmp_path, *training(2)).coverage.inputs[0].note == "rank unknown"


def test_a_cut_trace_gives_what_is_whole(tmp_path: Path) -> None:
    whole = text(training(50))
    (tmp_path / "node.trace.json").write_text(whole[: len(whole) // 2])
    run = load([str(tmp_path / "node.trace.json")])
    assert 15 < run.table("steps").height < 35
    assert "ends before its JSON does" in run.coverage.inputs[0].note
    assert run.table("captures")["truncated"].to_list() == [True]


def test_events_nobody_understands_are_counted(tmp_path: Path) -> None:
    spoilt = text(training(5)).replace('"ts": 120', '"ts": [120]').replace('"dur": 50', '"dur": "x"', 1)
    (tmp_path / "node.trace.json").write_text(spoilt)
    run = load([str(tmp_path / "node.trace.json")])
    assert run.table("steps").height == 5
    assert run.coverage.dropped_records == 2


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        ([], "no events"),
        ([span("python", "x", 5, 0)], "none of its 1 events is a span"),
        ([span("XLA Ops", "fusion", 5, 3, plane="/device:GPU:0")], "none of its 1 events is a span"),
    ],
)
def test_a_profile_of_nothing_says_so(tmp_path: Path, spans: list[Span], why: str) -> None:
    assert why in refusal(Path(write(tmp_path / "node.trace.json", *spans)))


def test_an_xplane_cut_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = xspace(*training())
    path = tmp_path / "node.xplane.pb"
    for length in range(40, len(whole), 29):
        path.write_bytes(whole[:length])
        assert "\n" not in refusal(path)
    path.write_bytes(gzip.compress(whole)[:-30])
    assert "nothing of it can be used" in refusal(path)


def test_flipped_bytes_never_crash(tmp_path: Path) -> None:
    whole = xspace(*training(), kernel("gemm", 0, 5))
    path = tmp_path / "node.xplane.pb"
    for place in range(20, len(whole), 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with suppress(InputError):
            load([str(path)])


def test_summaries_beside_a_profile_are_named_as_what_they_are(tmp_path: Path) -> None:
    write(tmp_path / "node.trace.json", *training())
    (tmp_path / "events.out.tfevents.1").write_bytes(
        b'\x18\0\0\0\0\0\0\0\xa3\x7fK"\t\0\0\xc0\x1a\xbf\xda\x41\x1a\rbrain.Event:2'
    )
    assert any("TensorBoard's event file" in note for note in load([str(tmp_path)]).coverage.notes)
