"""Events from NCCL Inspector, the profiler plugin of NCCL 2.28 and later."""

from __future__ import annotations

INSPECTOR = {
    "inspector.calls": "calls of one size that a rank completed in one communicator: comm, group_rank, n_ranks, nodes, "
    "op, bytes, calls, first_seq, last_seq (counted per operation), median_us, worst_us, median_busbw_gbs, "
    "timing (kernel_gpu, kernel_cpu, collective_cpu …), pid",
}
