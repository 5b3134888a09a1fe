"""Communication analysis on facts with holes: null columns, lost or shuffled rows, odd times. It abstains, never fails.

Rank 3 is late in every step: whatever is lost, nobody else may be named.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.clock import align
from ddiag.analysis.collectives import match
from ddiag.analysis.facts import job_facts
from ddiag.analysis.grad_buckets import grad_buckets
from ddiag.analysis.late_ranks import late_ranks
from ddiag.analysis.links import links
from ddiag.analysis.shard_units import shard_units
from ddiag.analysis.steps import find_steps
from ddiag.model.run import Run
from ddiag.model.tables import COLLECTIVES
from tests.unit.analysis.simulated import Action, Compute, Job, Meet

REQUIRED = ("rank", "start_ns", "end_ns")


def program(rank: int, step: int) -> list[Action]:
    pair = f"tp@{rank // 2}"
    varying = float(np.random.default_rng(step).uniform(0, 2))  # no two steps of a real job are alike
    return [
        Compute(5 + varying + rank),
        Meet(pair),
        Compute(3),
        Meet("0", op="all_gather"),
        Meet("0", op="broadcast"),
        Meet("0"),
    ]


def job() -> Run:
    return Job({"tp@0": (0, 1), "tp@1": (2, 3), "0": (0, 1, 2, 3)}, program, steps=5).run()


def with_calls(run: Run, calls: pl.DataFrame) -> Run:
    return dataclasses.replace(run, tables={**run.tables, "collectives": calls})


def analyse(run: Run) -> int | None:
    """Everything this room derives; the persistent late rank."""
    windows, acts = find_steps(run), activity(run)
    found = match(run, windows, acts)
    late = late_ranks(run, windows, acts, found)
    grad_buckets(run, windows, acts, found)
    shard_units(run, windows, acts, found)
    links(run, job_facts(run), found)
    align(run, found)
    if found is not None:
        known = found.table.filter(pl.col("wait_ms").is_not_null())
        assert (known["wait_ms"] >= -1e-9).all()
    return late.persistent_rank if late is not None else None


@pytest.mark.parametrize("column", [c.name for c in COLLECTIVES.columns if c.name not in REQUIRED])
def test_a_column_without_values(column: str) -> None:
    run = job()
    calls = run.table("collectives").with_columns(pl.lit(None).cast(COLLECTIVES.schema[column]).alias(column))
    assert analyse(with_calls(run, calls)) in (None, 3)


@pytest.mark.parametrize("table", ["groups", "steps", "ops", "kernels", "launches", "ranks", "captures"])
def test_a_table_that_is_missing(table: str) -> None:
    run = job()
    assert analyse(dataclasses.replace(run, tables={k: v for k, v in run.tables.items() if k != table})) in (None, 3)


@pytest.mark.parametrize("seed", [*range(12), 35, 94, 140, 184])
def test_lost_nulled_and_shifted_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    run = job()
    calls = run.table("collectives")
    calls = calls.filter(pl.Series(random.random(calls.height) > random.choice([0.02, 0.3])))
    for column in random.choice(["bytes_in", "group_size", "enqueue_ns", "dtype", "group", "op"], 2, replace=False):
        hole = pl.Series(random.random(calls.height) < 0.2)
        calls = calls.with_columns(pl.when(~hole).then(pl.col(str(column))).alias(str(column)))
    shift = pl.Series(random.integers(-(10**9), 10**9, calls.height) * (random.random(calls.height) < 0.05))
    calls = calls.with_columns(start_ns=pl.col("start_ns") + shift, end_ns=pl.col("end_ns") + shift)
    calls = calls.sample(fraction=1.0, shuffle=True, seed=seed)
    assert analyse(with_calls(run, calls)) in (None, 3)


def test_negative_and_empty_durations_are_no_calls() -> None:
    run = job()
    calls = run.table("collectives").with_columns(end_ns=pl.col("start_ns") - pl.col("seq") % 2)
    assert analyse(with_calls(run, calls)) is None
