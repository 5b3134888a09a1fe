"""What DDP measures of itself: times of forward, backward and communication, their overlap, the order of gradients.

Torch measures the first ten iterations and every hundredth, and averages. Reading that costs 0.1 ms, so it is read once
it holds the first ten, and then each time the number of measured iterations has doubled.
"""

from __future__ import annotations

from typing import Any

from ddiag.capture.recorder import Recorder

FIRST_LOOK = 12
"""Among the synchronised forward passes."""
_MEASURED_EVERY = 100
_MAX_ORDER = 5000
_NUMBERS = {
    "iteration": "iteration",
    "num_buckets_reduced": "buckets_reduced",
    "has_sync_bn": "sync_batch_norm",
    "avg_forward_compute_time": "forward_ns",
    "avg_backward_compute_time": "backward_ns",
    "avg_backward_comm_time": "communication_ns",
    "avg_backward_compute_comm_overlap_time": "overlap_ns",
}
"""Torch's name: ours. Times are averages per measured iteration."""


def tell(active: Recorder, index: int, module: Any, passes: int) -> int:
    """Write the fact for DDP module number *index* before its pass number *passes*; returns the next to call it at."""
    logged = module._get_ddp_logging_data()
    found = {ours: int(logged[theirs]) for theirs, ours in _NUMBERS.items() if theirs in logged}
    order = [int(one) for one in logged.get("prev_iteration_grad_ready_order_indices", "").split(",") if one.strip()]
    active.facts.write("ddp_log", index=index, step=active.step, passes=passes, **found, ready_order=order[:_MAX_ORDER])
    return next_look(passes)


def next_look(passes: int) -> int:
    """12, 102, 202, 402, 802 …: one after torch has measured."""
    return max(_MEASURED_EVERY, 2 * (passes - 2)) + 2 if passes > FIRST_LOOK else _MEASURED_EVERY + 2
