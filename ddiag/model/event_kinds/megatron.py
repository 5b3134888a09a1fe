"""Events of Megatron-LM's logs."""

from __future__ import annotations

MEGATRON = {
    "megatron.straggler": "the straggler detector's line: for each figure NAME in rtt_ms, power_w, temp_c, "
    "util_pct, clock_mhz, "
    "data_ms (DRtt), tflops (Etpt): min_NAME, min_NAME_rank, max_NAME, max_NAME_rank; power is in watts here "
    "(printed mW)",
    "megatron.etpt_order": "ranks in order of throughput: lowest (list of {rank, tflops}), highest (list)",
    "megatron.timer": "a timer's least and largest time over ranks: timer, min_ms, max_ms",
    "megatron.timer_ranks": "a timer of every rank (--timing-log-option all): timer, ms (maps rank -> ms)",
    "megatron.parameters": "parameters on one model-parallel rank: tensor_rank, pipeline_rank, parameters",
    "megatron.memory": "memory after the first iterations: allocated_mb, max_allocated_mb, reserved_mb, "
    "max_reserved_mb",
}
