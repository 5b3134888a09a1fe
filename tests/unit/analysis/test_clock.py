"""Aligning clocks by the ends of collectives."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from ddiag.analysis.clock import ERROR_BARS, Alignment, align, align_calls
from tests.unit.analysis.simulated import Compute, Job, Meet, collectives_of


def calls(groups: list[list[int]], offset_ns: dict[int, float], noise_ns: float, per_group: int = 20) -> pl.DataFrame:
    random = np.random.default_rng(3)
    rows = []
    for comm, members in enumerate(groups):
        for k in range(per_group):
            end = 1.7e18 // 1 + 1e7 * (k * len(groups) + comm)
            rows += [
                {
                    "call": comm * per_group + k,
                    "comm": comm,
                    "rank": rank,
                    "end_ns": int(end) + int(offset_ns[rank] + random.normal(0, noise_ns)),
                }
                for rank in members
            ]
    return pl.DataFrame(rows)


def test_offsets_are_recovered_to_the_noise() -> None:
    truth = {0: 0.0, 1: 3e6, 2: -5e6, 3: 2e9}
    found = align_calls(calls([[0, 1, 2, 3]], truth, 2000))
    assert found.offset_ns == {rank: pytest.approx(truth[rank], abs=3000) for rank in truth}
    assert found.error_us is not None
    assert 0.3 < found.error_us < 3.0


def test_offsets_travel_from_group_to_group() -> None:
    truth = {rank: float(rank // 2 * 7e6) for rank in range(8)}
    groups = [[0, 1], [2, 3], [4, 5], [6, 7], [0, 2, 4, 6], [1, 3, 5, 7]]
    found = align_calls(calls(groups, truth, 500))
    assert found.offset_ns == {rank: pytest.approx(truth[rank], abs=1500) for rank in truth}


def test_ranks_without_a_connection_keep_their_own_axis() -> None:
    truth = {0: 0.0, 1: 4e6, 2: 9e6, 3: 9e6 + 1e6}
    found = align_calls(calls([[0, 1], [2, 3]], truth, 0))
    assert found.offset_ns[1] == pytest.approx(4e6, abs=10)
    assert found.offset_ns[2] == 0
    assert found.offset_ns[3] == pytest.approx(1e6, abs=10)


def test_an_outlier_does_not_move_the_clock() -> None:
    table = calls([[0, 1]], {0: 0.0, 1: 1e6}, 100)
    table = table.with_columns(
        end_ns=pl.when((pl.col("rank") == 1) & (pl.col("call") == 3)).then(pl.col("end_ns") + 10**9).otherwise("end_ns")
    )
    assert align_calls(table).offset_ns[1] == pytest.approx(1e6, abs=300)


def test_without_matched_calls_nothing_is_shifted_and_every_skew_is_noise() -> None:
    run = Job({"0": (0, 1)}, lambda rank, step: [Compute(3)]).run()
    found = align(run, None)
    assert dict(found.offset_ns) == {0: 0, 1: 0}
    assert found.tolerance_ns == float("inf")


def test_tolerance_is_three_error_bars() -> None:
    assert Alignment({}, 2.0).tolerance_ns == ERROR_BARS * 2000.0


def test_a_run_is_aligned_by_its_collectives() -> None:
    job = Job({"0": (0, 1, 2)}, lambda rank, step: [Compute(5 + rank), Meet("0")], clock_ms={1: 40.0, 2: -3.0})
    run = job.run()
    found = align(run, collectives_of(run))
    assert {rank: ns / 1e6 for rank, ns in found.offset_ns.items()} == pytest.approx({0: 0, 1: 40.0, 2: -3.0}, abs=1e-3)
