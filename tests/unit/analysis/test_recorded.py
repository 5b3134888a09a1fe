"""Signals of recordings whose every time is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from ddiag.analysis import derive
from ddiag.ingest import load
from ddiag.model.signals import (
    Collectives,
    GradBuckets,
    InputWait,
    LateRanks,
    Memory,
    OptimizerStep,
    PythonOverhead,
    Signals,
    StepBudget,
)
from tests.recordings import Plan, healthy, write_run


def _signals(folder: Path, *plans: Plan) -> Signals:
    return derive(load([str(write_run(folder / "run", *plans))]))


def _family(signals: Signals, family: type):  # type: ignore[no-untyped-def]
    found = signals.get(family)
    assert found is not None, f"no {family.__name__}"
    return found


def test_the_budget_splits_a_step_into_what_the_thread_did(tmp_path: Path) -> None:
    budget = _family(_signals(tmp_path, *healthy()), StepBudget)
    assert budget.source == "recorded"
    assert not budget.on_device
    assert budget.step_ms == pytest.approx(90.0 + 2.0)
    assert budget.mean("input_ms") == pytest.approx(2.0)
    # Forward 28, optimizer 8, backward 54, of which the thread waits 6 for the last bucket.
    assert budget.mean("compute_ms") == pytest.approx(28.0 + 8.0 + 54.0 - 6.0)
    assert budget.mean("comm_transfer_ms") == pytest.approx(6.0)
    assert budget.mean("comm_wait_ms") == pytest.approx(0.0)
    assert budget.mean("overlapped_comm_ms") == pytest.approx(6.0)


def test_a_rank_late_for_want_of_input_is_named_with_its_cause(tmp_path: Path) -> None:
    late = Plan(rank=1, late_ms=20.0)
    waiting = Plan(rank=0, peer_late_ms=20.0)
    signals = _signals(tmp_path, waiting, late)
    ranks = _family(signals, LateRanks)
    assert ranks.persistent_rank == 1
    row = {row["rank"]: row for row in ranks.table.iter_rows(named=True)}[1]
    assert row["cause"] == "input"
    assert row["input_ms"] == pytest.approx(20.0)
    wait = _family(signals, InputWait)
    assert dict(wait.per_rank.select("rank", "wait_ms").iter_rows()) == pytest.approx({0: 2.0, 1: 22.0})
    assert wait.single_process is False


def test_buckets_are_those_the_recorder_labelled(tmp_path: Path) -> None:
    buckets = _family(_signals(tmp_path, *healthy(buckets=4)), GradBuckets)
    assert buckets.table.height == 4
    assert buckets.count_per_step == pytest.approx(4.0)
    assert buckets.median_bytes == 8 << 20
    assert buckets.issued == "backward"
    assert (buckets.accumulation, buckets.synced_backwards) == (1, 1)


def test_queued_calls_cost_their_own_time_and_not_that_of_those_before_them(tmp_path: Path) -> None:
    calls = _family(_signals(tmp_path, *healthy()), Collectives)
    assert calls.matched_ranks == 2
    assert calls.comm_ms == pytest.approx(12.0)
    assert calls.table["transfer_ms"].to_list() == pytest.approx([6.0] * calls.table.height)
    assert not calls.timed_on_device


def test_memory_creep_is_measured_over_the_whole_run(tmp_path: Path) -> None:
    growing = healthy(steps=400, capacity=200, rss_growth_bytes=300_000)
    memory = _family(_signals(tmp_path, *growing), Memory)
    assert memory.per_rank["device"].unique().to_list() == ["cpu"]
    assert memory.growth_bytes_per_step == pytest.approx(300_000)
    assert memory.growth_steps == 320
    level = _family(_signals(tmp_path / "level", *healthy(steps=400, capacity=200)), Memory)
    assert level.growth_bytes_per_step == 0.0


def test_checkpoints_count_over_the_whole_run_and_do_not_distort_the_step(tmp_path: Path) -> None:
    signals = _signals(tmp_path, *healthy(steps=40, save_every=10, save_ms=500.0))
    python = _family(signals, PythonOverhead)
    assert (python.checkpoints, python.checkpoint_ms) == (4, pytest.approx(500.0))
    assert python.checkpoint_ms_per_step == pytest.approx(50.0)
    assert python.checkpoint_share == pytest.approx(50.0 / 142.0, rel=0.01)
    budget = _family(signals, StepBudget)
    assert budget.step_ms == pytest.approx(92.0)
    assert "checkpoint" in budget.note
    every = _family(_signals(tmp_path / "every", *healthy(save_every=1, save_ms=500.0)), StepBudget)
    assert every.step_ms == pytest.approx(592.0), "where every step saves, that is the step"


def test_what_is_compiled_again_and_again_is_named_and_its_steps_do_not_stand_for_the_others(tmp_path: Path) -> None:
    again = {"compile_at": (0, 10, 20, 30), "compile_label": "again: forward (model.py:7)"}
    signals = _signals(tmp_path, *healthy(steps=40, **again))
    python = _family(signals, PythonOverhead)
    assert python.compile_ms == pytest.approx(600.0), "the first step is warm-up"
    assert (python.compile_steps, python.compiled_again) == (39, ("forward (model.py:7)",))
    assert _family(signals, StepBudget).step_ms == pytest.approx(92.0)
    assert _family(signals, LateRanks).persistent_rank is None


@pytest.mark.parametrize(
    ("label", "steps"),
    [
        ("forward (model.py:7)", (0, 20)),
        ("forward (model.py:7)", (10, 20)),
        ("again: forward (model.py:7)", (0, 20)),
        ("again: forward (model.py:7)", (0, 20, 20, 20)),
    ],
)
def test_what_has_to_be_compiled_is_no_fault(tmp_path: Path, label: str, steps: tuple[int, ...]) -> None:
    """A graph for all shapes after the first that changes; the first evaluation, of every layer; other functions."""
    changes = healthy(steps=40, compile_at=steps, compile_label=label)
    python = _family(_signals(tmp_path, *changes), PythonOverhead)
    assert (python.compile_ms, python.compiled_again) == (0.0, ())


def test_a_wrapped_ring_judges_the_newest_steps(tmp_path: Path) -> None:
    budget = _family(_signals(tmp_path, *healthy(steps=300, capacity=120)), StepBudget)
    assert 15 <= budget.n_steps <= 20
    assert budget.table["step"].to_numpy().min() >= 280
    assert budget.mean("compute_ms") == pytest.approx(84.0)


def test_ranks_on_other_hosts_with_other_clocks_are_compared_all_the_same(tmp_path: Path) -> None:
    late = replace(Plan(rank=1, late_ms=20.0), mono_ns=77_000_000_000, wall_ns=Plan().wall_ns + 5_000_000)
    ranks = _family(_signals(tmp_path, Plan(rank=0, peer_late_ms=20.0), late), LateRanks)
    assert ranks.persistent_rank == 1


def test_the_update_takes_what_its_phase_took(tmp_path: Path) -> None:
    update = _family(_signals(tmp_path, *healthy()), OptimizerStep)
    assert update.ms_per_step == pytest.approx(8.0)
    assert update.skipped_steps == 0


def test_only_chosen_steps(tmp_path: Path) -> None:
    run = load([str(write_run(tmp_path / "run", *healthy(steps=20)))])
    assert _family(derive(run, steps=(5, 9)), StepBudget).n_steps == 5


def test_ranks_that_log_as_long_as_any_are_told(tmp_path: Path) -> None:
    run = load([str(write_run(tmp_path / "run", *healthy(ranks=3)))])
    logged = pl.col("rank").replace_strict({0: 20_000_000, 1: 14_000_000, 2: 3_000_000})
    tables = {**run.tables, "step_summaries": run.table("step_summaries").with_columns(logging_ns=logged)}
    overhead = _family(derive(replace(run, tables=tables)), PythonOverhead)
    assert overhead.logging_ms_per_step == pytest.approx(20.0)
    assert overhead.logging_ranks == (0, 1)
