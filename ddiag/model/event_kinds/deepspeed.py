"""Events of DeepSpeed's logs."""

from __future__ import annotations

DEEPSPEED = {
    "ds.version": "DeepSpeed says its version: version",
    "ds.optimizer": "which optimizer and ZeRO stage runs: optimizer, stage, vector (AVX512, AVX2, scalar)",
    "ds.overflow": "a step was skipped because gradients overflowed: scale, new_scale (equal: not reduced), hysteresis "
    "(bool: only the hysteresis was used up), by (deepspeed, apex, fairseq, non_finite: no scale, bf16)",
    "ds.scale_minimum": "the loss scale cannot be lowered any more and the run ends: scale",
    "ds.config_rejected": "DeepSpeed refuses the configuration: message",
    "ds.cache_flushes": "the allocator emptied its cache within a step: count, step",
    "ds.memory": "see_memory_usage: where, allocated_gb, max_allocated_gb, cached_gb, max_cached_gb",
    "ds.host_memory": "memory of the host: used_gb, percent, where",
    "ds.comm_summary": "one row of the comms logger's summary: op, message_bytes, count, total_ms, avg_ms, algbw_gbps, "
    "busbw_gbps, straggler_ms (total, when shown); Gbps are gigabits",
    "ds.comm_call": "one call of the verbose comms logger: op, ms, message_bytes, algbw_gbps, busbw_gbps",
}
