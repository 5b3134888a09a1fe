# ruff: noqa: E501
"""DeepSpeed's log in its old and new words.

Lines are quoted as machines print them, however long.
"""

from __future__ import annotations

import pytest

from ddiag.ingest.logs.deepspeed import DeepSpeed
from ddiag.ingest.logs.printed_settings import PrintedSettings
from tests.unit.ingest.logs.records_of import events, metrics, settings

HEAD = "[2024-12-10 11:05:41,114] [INFO] [logging.py:128:log_dist] [Rank 0] "
ATTEMPTED = "Skipping step. Attempted loss scale: "
TIMERS = (
    ("fwd_microstep: 1.50 | bwd_microstep: 2.00 | step_microstep: 30.25", ("fwd_microstep", "bwd_microstep", "step_microstep")),
    ("forward_microstep: 1.50 | backward_inner_microstep: 2.00", ("fwd_microstep", "bwd_inner_microstep")),
    ("fwd: 1.50 | bwd: 2.00 | bwd_allreduce: 0.10 | step: 3.00", ("fwd", "bwd", "bwd_allreduce", "step")),
    ("optimizer_allgather: 0.00 | optimizer_step: 9480.52", ("optimizer_allgather", "optimizer_step")),
)  # fmt: skip
OVERFLOWS = (
    (f"[deepspeed] OVERFLOW! Rank 0 {ATTEMPTED}65536, reducing to 32768", 65536, 32768),
    (f"[deepscale] OVERFLOW! Rank 0 {ATTEMPTED}4294967296.0, reducing to 2147483648.0", 2**32, 2**31),
    (f"[deepspeed] fp16 dynamic loss scale overflow! {ATTEMPTED}128.0, reducing to 64.0", 128, 64),
    (f"[deepspeed] OVERFLOW! Rank 0 {ATTEMPTED}4, but hysteresis is 2. Reducing hysteresis to 1", 4, 4),
    ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0", 32768, 16384),
    ("NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0", 128, 64),
)


@pytest.mark.parametrize(("pairs", "names"), TIMERS)
@pytest.mark.parametrize("before", [HEAD, "[Rank 0] rank=0 "])
def test_timers_have_one_name(before: str, pairs: str, names: tuple[str, ...]) -> None:
    assert [name for name, _, _ in metrics(f"{before}time (ms) | {pairs}", DeepSpeed)] == [f"ds.{n}_ms" for n in names]


@pytest.mark.parametrize(("line", "scale", "new"), OVERFLOWS)
def test_overflows_of_all_scalers(line: str, scale: float, new: float) -> None:
    (event,) = events(HEAD + line, DeepSpeed)
    assert (event.kind, event.number("scale"), event.number("new_scale")) == ("ds.overflow", scale, new)


@pytest.mark.parametrize(
    "line",
    [
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering",
    ],
)
def test_the_smallest_scale_ends_the_run(line: str) -> None:
    (event,) = events(line, DeepSpeed)
    assert event.kind == "ds.scale_minimum"


def test_throughput_old_and_new() -> None:
    new = (
        "[timer.py:264:stop] epoch=0/micro_step=40/global_step=40, RunningAvgSamplesPerSec=0.69, "
        "CurrSamplesPerSec=0.70, MemAllocated=6.93GB, MaxMemAllocated=21.76GB"
    )
    old = "[timer.py:187:stop] 0/50, SamplesPerSec=8.58, MemAllocated=2.93GB, MaxMemAllocated=12.76GB"
    assert ("samples_per_s", 0.70, 40) in metrics(new, DeepSpeed)
    assert ("memory.max_allocated_gb", 21.76, 40) in metrics(new, DeepSpeed)
    assert ("samples_per_s_mean", 8.58) in [one[:2] for one in metrics(old, DeepSpeed)]


@pytest.mark.parametrize("suffix", ["torch.cuda.empty_cache()", "get_accelerator().empty_cache()"])
def test_cache_flushes(suffix: str) -> None:
    line = (
        f"[WARNING] [stage3.py:2069:step] 27 pytorch allocator cache flushes since last step. this happens … {suffix}"
    )
    (event,) = events(line, DeepSpeed)
    assert event.integer("count") == 27


def test_memory_lines_know_where_they_were_printed() -> None:
    text = """[INFO] [utils.py:791:see_memory_usage] Stage 3 initialize beginning
[INFO] [utils.py:792:see_memory_usage] MA 1.02 GB         Max_MA 2.12 GB         CA 2.35 GB         Max_CA 2 GB
[INFO] [utils.py:799:see_memory_usage] CPU Virtual Memory:  used = 231.66 GB, percent = 92.1%"""
    device, host = events(text, DeepSpeed)
    assert (device.word("where"), device.number("max_allocated_gb")) == ("Stage 3 initialize beginning", 2.12)
    assert host.number("percent") == 92.1


def _cells(*cells: object) -> str:
    """Fields of 20 columns, as the comms logger prints them."""
    return "".join(f"{cell: <20}" for cell in cells)


COUNTED = ("Comm. Op", "Message Size", "Count")
HEADER = _cells(*COUNTED, "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)")
LATE = _cells(*COUNTED, "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)", "Avg straggler(ms)")


def test_a_summary_has_rows_below_the_name_of_each_operation() -> None:
    lines = (
        HEADER,
        "all_reduce | [Caller Func: step]",
        _cells("", "100.0 MB", 3, 4.5, 1.5, 1118.48, 0.0),
        _cells("", "2.0 KB", 9, 1.0, 0.1, 0.2, 0.3),
        "barrier",
        _cells("", "0B", 1, 0.2, 0.2, 0.0, 0.0),
        "epoch 3 begins",
    )
    rows = events("\n".join(lines), DeepSpeed)
    assert [(row.word("op"), row.integer("message_bytes"), row.integer("count")) for row in rows] == [
        ("all_reduce", 100 << 20, 3),
        ("all_reduce", 2048, 9),
        ("barrier", 0, 1),
    ]


def test_the_straggler_table_has_other_columns() -> None:
    (row,) = events("\n".join((LATE, "all_reduce", _cells("", "1.0 GB", 7, 700.0, 70.0, 100.0, 10.0))), DeepSpeed)
    assert (row.number("straggler_ms"), row.number("avg_ms"), row.get("busbw_gbps")) == (70.0, 100.0, None)


@pytest.mark.parametrize("caller", ["", "[Caller Func: reduce] | "])
def test_single_calls_with_and_without_their_caller(caller: str) -> None:
    tail = "time (ms): 9.46 | msg size: 100.0 MB | algbw (Gbps): 204.22 | busbw (Gbps): 382.92"
    (event,) = events(f"{HEAD}comm op: all_reduce | {caller}{tail}", DeepSpeed)
    assert (event.word("op"), event.number("ms")) == ("all_reduce", 9.46)


def test_the_printed_configuration_is_read() -> None:
    text = """[2023-01-01 00:00:00,000] [INFO] [config.py:957:print_user_config]   json = {
    "train_batch_size": 32,
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": 5.000000e+08
    }
}
[2023-01-01 00:00:00,001] [INFO] [engine.py:1:x] next"""
    found = settings(text, PrintedSettings)
    assert found["ds_config:train_batch_size"] == "32"
    assert float(found["ds_config:zero_optimization.reduce_bucket_size"]) == 5e8


def test_a_configuration_shown_with_cat_is_read() -> None:
    text = """$ cat ds.json
{
 "zero_optimization": {
  "stage": 2,
  "overlap_comm": true
 },
 "bf16": {"enabled": true}
}
$ env"""
    assert settings(text, PrintedSettings)["ds_config:zero_optimization.overlap_comm"] == "true"


def test_training_arguments_are_read_without_their_secrets() -> None:
    text = "TrainingArguments(\n_n_gpu=1,\nfsdp=full_shard auto_wrap,\nhub_token=<HUB_TOKEN>,\nlogging_steps=10,\n)\n"
    found = settings(text, PrintedSettings)
    assert found["trainer:fsdp"] == "full_shard auto_wrap"
    assert "trainer:hub_token" not in found
