"""Whose memory the chart shows is said in its title."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

from ddiag.model.signals import Memory, Signals
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
