"""Whose memory the chart shows is said in its title."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

from ddiag.model.signals import Memory, Signals, StepBudget
from ddiag.plots.memory import memory_timeline
from tests.factories import make_signals


def _on(device: str) -> Signals:
    memory = make_signals().get(Memory)
    assert memory is not None
    there = pl.lit(device).alias("device")
    moved = dataclasses.replace(
        memory, per_rank=memory.per_rank.with_columns(there), timeline=memory.timeline.with_columns(there)
    )
    return make_signals(memory=moved)


@pytest.mark.parametrize(("device", "title"), [("cpu", "Host memory"), ("cuda:0", "Device memory")])
def test_memory_of_a_host_is_not_called_a_devices(device: str, title: str) -> None:
    chart = memory_timeline(_on(device))
    assert chart is not None
    assert chart.title == f"{title} over time"


def _recorded(device: str) -> Signals:
    signals = _on(device)
    budget = signals.get(StepBudget)
    assert budget is not None
    return make_signals(memory=signals.get(Memory), step_budget=dataclasses.replace(budget, source="recorded"), steps=5)


def test_a_recording_s_lines_reach_its_last_step() -> None:
    """Only changes are kept: memory that stays as it is would end with its last change."""
    signals = _recorded("cpu")
    memory, budget = signals.get(Memory), signals.get(StepBudget)
    assert memory is not None
    assert budget is not None
    chart = memory_timeline(signals)
    assert chart is not None
    start = min(memory.timeline["ts_ns"].to_list())
    end = max(*memory.timeline["ts_ns"].to_list(), *budget.table["end_ns"].to_list())
    assert {line.x[-1] for line in chart.figure.data} == {(end - start) / 1e6}
    assert all(line.y[-1] == line.y[-2] for line in chart.figure.data)


def test_it_says_what_was_read() -> None:
    recorded, traced = memory_timeline(_recorded("cpu")), memory_timeline(_on("cpu"))
    assert recorded is not None
    assert traced is not None
    assert "Resident memory" in recorded.how_to_read
    assert "tensors" in traced.how_to_read
