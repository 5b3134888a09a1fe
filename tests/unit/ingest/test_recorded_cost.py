"""What a recording says of its own cost."""

from __future__ import annotations

import polars as pl

from ddiag.ingest.recorded_cost import recording_cost
from ddiag.model.run import RecordingCost

MS = 1_000_000


def _summaries(costs: dict[int, list[float]], step_ms: float = 50.0) -> pl.DataFrame:
    rows = [
        {
            "rank": rank,
            "step": step,
            "start_ns": int(step * step_ms * MS),
            "end_ns": int((step + 1) * step_ms * MS),
            "overhead_ns": int(cost * MS),
        }
        for rank, of_steps in costs.items()
        for step, cost in enumerate(of_steps)
    ]
    return pl.DataFrame(rows)


def test_the_rank_it_cost_most_is_named_and_first_steps_do_not_count() -> None:
    found = recording_cost(_summaries({0: [9.0] * 8 + [0.25] * 20, 1: [9.0] * 8 + [0.3] * 20}))
    assert found == RecordingCost(rank=1, share=0.006, ms_per_step=0.3, step_ms=50.0)


def test_few_dear_steps_count_by_their_share() -> None:
    found = recording_cost(_summaries({0: [0.0] * 8 + ([3.0] + [0.1] * 9) * 2}))
    assert found is not None
    assert found.share == 0.0078


def test_too_few_steps_say_nothing() -> None:
    assert recording_cost(_summaries({0: [0.3] * 15})) is None
    assert recording_cost(pl.DataFrame()) is None
