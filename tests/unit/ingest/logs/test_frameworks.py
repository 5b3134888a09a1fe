# ruff: noqa: E501
"""Logs of Megatron, torchtitan, Hugging Face, RL trainers, schedulers and nccl-tests.

Lines are quoted as machines print them, however long.
"""

from __future__ import annotations

import pytest

from ddiag.ingest.logs.megatron import Megatron
from ddiag.ingest.logs.nccl_tests import NcclTests
from ddiag.ingest.logs.slurm import Slurm
from ddiag.ingest.logs.trainers import Trainers
from tests.unit.ingest.logs.records_of import events, metrics, settings

NEW = (
    " [2024-05-01 12:00:00] iteration      100/  500000 | consumed samples:       102400 | elapsed time per iteration (ms): "
    "1520.3 | throughput per GPU (TFLOP/s/GPU): 412.5 | learning rate: 1.500000E-04 | global batch size:  1024 | lm loss: "
    "7.123456E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   2 | number of nan iterations:   0 |"
)
OLD = (
    " iteration       50/    5000 | consumed samples:        12800 | elapsed time per iteration (ms): 5210.4 | learning rate: "
    "1.500E-04 | global batch size:   256 | lm loss: 8.012345E+00 | loss scale: 4096.0 | grad norm: nan | number of skipped "
    "iterations:   0 | number of nan iterations:   0 |"
)


@pytest.mark.parametrize(("line", "step", "step_ms", "scale"), [(NEW, 100, 1520.3, 1.0), (OLD, 50, 5210.4, 4096.0)])
@pytest.mark.parametrize("envelope", ["", "[default7]:", "7: "])
def test_megatron_iterations(envelope: str, line: str, step: int, step_ms: float, scale: float) -> None:
    found = {name: (value, at) for name, value, at in metrics(envelope + line, Megatron)}
    assert found["step_ms"] == (step_ms, step)
    assert found["loss_scale"] == (scale, step)
    assert found["loss"][0] > 7


STRAGGLER = (
    "| MnRtt/Rnk: {a}ms/8 | MxRtt/Rnk: {b}ms/0 | MnPwr/Rnk: {p}W/8 | MxPwr/Rnk: 683801W/18 | MnTmp/Rnk: 52C/0 | MxTmp/Rnk: "
    "65C/21 | MnUtl/Rnk: 97%/8 | MxUtl/Rnk: 100%/6 | MnClk/Rnk: 1950MHz/28 | MxClk/Rnk: 1980MHz/0 | MnDRtt/Rnk: 14.27ms/23 | "
    "MxDRtt/Rnk: 34.65ms/3 | MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: 297.32TF/8"
)


@pytest.mark.parametrize("power", ["601796", "601796.00"])
@pytest.mark.parametrize(
    "head", [" 0: INFO:megatron.core.utils:[2024-03-14 23:07:56] ", "[2024-10-23 01:29:30] [INFO] "]
)
def test_megatron_straggler_lines_print_milliwatts(head: str, power: str) -> None:
    (event,) = events(head + STRAGGLER.format(a=3453.08, b=3468.2, p=power), Megatron)
    assert event.number("min_power_w") == pytest.approx(601.796)
    assert (event.integer("max_rtt_ms_rank"), event.number("max_rtt_ms")) == (0, 3468.2)
    assert (event.integer("min_clock_mhz_rank"), event.number("min_tflops")) == (28, 296.02)


def test_megatron_timers_in_three_forms() -> None:
    least = (
        "(min, max) time across ranks (ms):\n    forward-compute ................................: (1410.02, 2530.90)\n"
    )
    most = "max time across ranks (ms):\n    forward-compute ................................: 2530.90\n"
    every = "times across ranks (ms):\n  forward-compute:\n     rank  0: 1410.02\n     rank 13: 2530.90\n"
    (first,), (second,), (third,) = (events(text, Megatron) for text in (least, most, every))
    assert (first.number("min_ms"), first.number("max_ms")) == (1410.02, 2530.9)
    assert (second.get("min_ms"), second.number("max_ms")) == (None, 2530.9)
    assert third.get("ms") == {"0": 1410.02, "13": 2530.9}


def test_megatron_arguments() -> None:
    text = "----- arguments -----\n  pipeline_model_parallel_size .................... 8\n  swiglu .... True\n---- end of arguments ----"
    assert settings(f"--{text}", Megatron)["megatron:pipeline_model_parallel_size"] == "8"


def test_hugging_face_and_titan_lines() -> None:
    trainer = "{'loss': 2.0491, 'grad_norm': nan, 'learning_rate': 0.000196, 'epoch': 0.28}"
    new = "{'loss': '2.049', 'grad_norm': '1.41', 'learning_rate': '0.0001', 'epoch': '0.28'}"
    titan = (
        "\x1b[36m[titan] 2025-01-01 00:00:00,000 - root - INFO - step: 10  loss:  7.1234  grad_norm:  1.2300  memory: "
        "40.01GiB(50.53%)  tps: 5,012  tflops: 290.10  mfu: 29.33%\x1b[39m"
    )
    assert ("loss", 2.0491, None) in metrics(trainer, Trainers)
    assert ("grad_norm", 1.41, None) in metrics(new, Trainers)
    assert {("memory.used_pct", 50.53, 10), ("tokens_per_s_per_gpu", 5012.0, 10)} <= set(metrics(titan, Trainers))


def test_own_lines_keep_rank_step_and_unit() -> None:
    found = metrics("rank 3 | step 17 | data_time: 0.250s step_time=1310ms tokens=8,192", Trainers)
    assert found == [("step_ms", 1310.0, 17), ("data_ms", 250.0, 17), ("tokens", 8192.0, 17)]


@pytest.mark.parametrize(
    "line",
    [
        "WARNING rank 5: NaN loss, skipping this batch",
        "[rank5]: Skipping step 12: non-finite gradients",
        "rank=5 loss is inf -> batch skipped",
    ],
)
def test_a_skip_knows_its_rank(line: str) -> None:
    (event,) = events(line, Trainers)
    assert (event.kind, event.rank) == ("trainer.nan_skip", 5)


@pytest.mark.parametrize("line", [NEW, "config: skip_nan_grad: True", "skipping information about infrastructure"])
def test_what_only_sounds_like_a_skip(line: str) -> None:
    assert "trainer.nan_skip" not in {event.kind for event in events(line, Trainers)}


@pytest.mark.parametrize(
    ("line", "kind", "field", "value"),
    [
        ("slurmstepd: error: *** JOB 7711 ON gn03 CANCELLED AT 2026-01-05T03:00:11 DUE TO TIME LIMIT ***",
         "slurm.cancelled", "reason", "time_limit"),
        ("slurmstepd: error: *** STEP 7711.0 ON gn03 CANCELLED AT 2026-01-05T03:00:11 DUE TO PREEMPTION ***",
         "slurm.cancelled", "reason", "preemption"),
        ("slurmstepd: error: *** STEP 7711.0 ON gn03 CANCELLED AT 2026-01-05T03:00:11 DUE TO NODE FAILURE, SEE SLURMCTLD LOG "
         "FOR DETAILS ***", "slurm.cancelled", "reason", "node_failure"),
        ("slurmstepd: error: *** JOB 7711 ON gn03 CANCELLED AT 2026-01-05T03:00:11 ***", "slurm.cancelled", "reason", "user"),
        ("slurmstepd: error: Detected 2 oom_kill events in StepId=7711.0. Some of the step tasks have been OOM Killed.",
         "slurm.oom_kill", "job", "7711"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7711.batch cgroup. Some of your processes may have been "
         "killed by the cgroup out-of-memory handler.", "slurm.oom_kill", "step", "batch"),
        ("srun: error: gn07: task 13: Out Of Memory", "slurm.oom_kill", "task", "13"),
        ("srun: error: gn07: tasks 8-10,15: Exited with exit code 1", "slurm.task_exit", "tasks", [8, 9, 10, 15]),
        ("srun: error: gn07: task 9: Segmentation fault (core dumped)", "slurm.task_exit", "signal", 11),
        ("srun: error: Node failure on gn07", "slurm.node_fail", "node", "gn07"),
        ("      reason: OOMKilled", "k8s.pod_ended", "reason", "OOMKilled"),
        ("7711.0   python   gpu   TIMEOUT  0:0", "slurm.cancelled", "reason", "time_limit"),
    ],
)  # fmt: skip
def test_what_the_scheduler_says(line: str, kind: str, field: str, value: object) -> None:
    found = [event for event in events(line, Slurm) if event.kind == kind]
    assert [event.get(field) for event in found] == [value]


def test_a_task_alone_is_a_rank() -> None:
    (event,) = events("srun: error: gn07: task 13: Killed", Slurm)
    assert (event.rank, event.host, event.get("signal")) == (13, "gn07", 9)


TABLE = """# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
# Using devices
#  Rank  0 Group  0 Pid   4711 on       gn07 device  0 [0x1b] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
   536870912     134217728     float     sum      -1   2511.4  213.77  400.82      0   2507.9  214.07  401.39      3
# Avg bus bandwidth    : 201.11"""


def test_a_table_of_nccl_tests() -> None:
    device, outside, inside, average = events(f"./build/all_reduce_perf -b 8 -e 8G\n{TABLE}", NcclTests)
    assert (device.rank, device.host, device.word("bus_id")) == (0, "gn07", "0000:1b:00.0")
    assert (outside.number("busbw_gbps"), inside.number("busbw_gbps"), inside.integer("wrong")) == (400.82, 401.39, 3)
    assert (average.number("busbw_gbps"), average.word("test"), average.integer("nranks")) == (201.11, "all_reduce", 1)
