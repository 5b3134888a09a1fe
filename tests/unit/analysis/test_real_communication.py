"""Communication on real traces, against figures computed independently of ddiag (from the files, or their metadata)."""

from __future__ import annotations

from functools import cache
from typing import Any

import polars as pl
import pytest

from ddiag.analysis.activity import RankActivity, activity
from ddiag.analysis.clock import align
from ddiag.analysis.collectives import match
from ddiag.analysis.facts import job_facts
from ddiag.analysis.grad_buckets import grad_buckets
from ddiag.analysis.late_ranks import late_ranks
from ddiag.analysis.links import links
from ddiag.analysis.shard_units import shard_units
from ddiag.analysis.steps import StepWindows, find_steps
from ddiag.ingest import load
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, LateRanks
from tests.shared import shared_data

HTA = "facebookresearch+HolisticTraceAnalysis"


@cache
def traces(*parts: str) -> tuple[Run, StepWindows, dict[int, RankActivity], Collectives]:
    run = load([str(shared_data(*parts))], jobs=1)
    windows, acts = find_steps(run), activity(run)
    found = match(run, windows, acts)
    assert found is not None
    return run, windows, acts, found


def late(*parts: str) -> LateRanks | None:
    return late_ranks(*traces(*parts))


DLRM = ("facebookresearch+param", "dlrm_kineto_8rank")


def dlrm_rows() -> dict[int, dict[str, Any]]:
    found = late(*DLRM)
    assert found is not None
    return {row["rank"]: row for row in found.table.iter_rows(named=True)}


def test_dlrm_names_rank_seven_and_never_rank_two() -> None:
    found = late(*DLRM)
    assert found is not None
    assert found.persistent_rank == 7
    rows = dlrm_rows()
    assert {rank: row["last_count"] for rank, row in rows.items() if row["last_count"]} == {7: 5, 5: 2, 4: 1}
    assert {row["collectives"] for row in rows.values()} == {8}
    assert rows[2]["blame_ms"] == 0.0
    assert not found.rotating


def test_dlrm_blame_in_rank_microseconds() -> None:
    """Exactly the sums of (duration - shortest duration) in the files: 35,543 + 6,276 + 4,987 rank-µs.

    By start times, on the one clock these eight ranks share, the sums are 35,552 + 6,282 + 5,009 (ends differ by up to
    7 µs); both give rank 7 75.9 %.
    """
    rows = dlrm_rows()
    blame = {rank: round(row["blame_ms"] * 1000) for rank, row in rows.items() if row["blame_ms"]}
    assert blame == {7: 35_543, 5: 6_276, 4: 4_987}
    assert rows[7]["blame_share"] == pytest.approx(0.759, abs=0.001)


def test_dlrm_by_start_times_agrees_with_the_independent_truth() -> None:
    table = traces(*DLRM)[3].table
    late_by = pl.col("start_ns").max().over("call") - pl.col("start_ns")
    skew = table.with_columns(early=late_by).with_columns(last=pl.col("rank").sort_by("early").first().over("call"))
    by_rank = skew.group_by("last").agg(pl.col("early").sum() / 1000)
    assert dict(by_rank.iter_rows()) == {7: 35_552, 5: 6_282, 4: 5_009}


def test_dlrm_first_call() -> None:
    table = traces(*DLRM)[3].table
    first = table.filter(pl.col("call") == table["call"].min()).sort("rank")
    assert (first["dur_ms"] * 1000).round().to_list() == [2146, 7635, 518, 6132, 4882, 4679, 514, 10]
    assert first["transfer_ms"].unique().to_list() == pytest.approx([0.010])


def test_dlrm_clocks_agree_within_microseconds() -> None:
    run, *_, found = traces(*DLRM)
    aligned = align(run, found)
    assert max(abs(ns) for ns in aligned.offset_ns.values()) < 7_000
    assert aligned.error_us is not None
    assert aligned.error_us < 3.0


def test_dlrm_reduces_two_buckets_and_shards_nothing() -> None:
    run, windows, acts, found = traces(*DLRM)
    buckets = grad_buckets(run, windows, acts, found)
    assert buckets is not None
    # 394,241 and 226,960 floats; the third all-reduce (112 floats, 448 bytes) is a metric.
    assert buckets.table["bytes"].to_list() == [4 * 394_241, 4 * 226_960]
    assert (buckets.count_per_step, buckets.accumulation, buckets.issued) == (2.0, 1, "backward")
    assert shard_units(run, windows, acts, found) is None


def test_ddp_on_a100_has_five_buckets_of_the_recorded_sizes() -> None:
    run, windows, acts, found = traces(HTA, "nccl_parser_config")
    buckets = grad_buckets(run, windows, acts, found)
    assert buckets is not None
    elements = [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
    assert buckets.table["bytes"].to_list() == [4 * count for count in elements]
    assert buckets.total_bytes == 4 * sum(elements)
    assert (buckets.count_per_step, buckets.accumulation) == (5.0, 1)
    # One rank of two: durations contain waiting, so there is no bandwidth and no advice to derive from it.
    assert (buckets.beta_gbps, buckets.best_bytes) == (None, None)


def test_ddp_on_mi300_has_two_buckets_although_kernels_are_generic() -> None:
    run, windows, acts, found = traces("AMD-AGI+TraceLens", "mi300", "resnet_act_checkpoint.json.gz")
    buckets = grad_buckets(run, windows, acts, found)
    assert buckets is not None
    assert buckets.table["bytes"].to_list() == [2 * 2_873_320, 2 * 8_816_192]
    assert found.matched_ranks == 1
    assert late_ranks(run, windows, acts, found) is None


def test_one_reduction_per_parameter_from_a_compiled_backward_is_recognised() -> None:
    run, windows, acts, found = traces(HTA, "df_index_resolver")
    buckets = grad_buckets(run, windows, acts, found)
    assert buckets is not None
    assert buckets.count_per_step == 404.0
    assert buckets.total_bytes == 0  # sizes were not recorded
    assert found.overlap_share == 0.0


def test_two_of_128_ranks_blame_nobody() -> None:
    found = late(HTA, "trace_filter")
    assert found is None or found.persistent_rank is None
    if found is not None:
        assert "2 of 128 members have a trace" in found.note


def test_symmetric_memory_kernels_are_collectives() -> None:
    _, _, _, found = traces("AMD-AGI+TraceLens", "b200")
    counts = {row["op"]: row["count_per_step"] for row in found.summary.iter_rows(named=True)}
    assert counts == {"all_reduce": 73.0, "all_gather": 1.0}


@pytest.mark.parametrize(
    "parts",
    [
        DLRM,
        (HTA, "df_index_resolver"),
        (HTA, "nccl_parser_config"),
        (HTA, "trace_filter"),
        (HTA, "trace_diff", "control"),
        ("AMD-AGI+TraceLens", "mi300", "resnet_act_checkpoint.json.gz"),
        ("AMD-AGI+TraceLens", "b200"),
    ],
)
def test_no_real_trace_gives_an_impossible_figure_or_a_slow_link(parts: tuple[str, ...]) -> None:
    run, _, _, found = traces(*parts)
    table = found.table
    assert (table["exposed_ms"] <= table["dur_ms"] + 1e-6).all()
    assert (table["exposed_ms"] >= -1e-6).all()
    known = table.filter(pl.col("wait_ms").is_not_null())
    assert (known["wait_ms"] >= 0).all()
    assert (known["wait_ms"] + known["transfer_ms"] - known["dur_ms"]).abs().max() in (None, pytest.approx(0, abs=1e-6))
    assert 0 <= found.blocking_ms <= found.exposed_ms + 1e-6 <= found.comm_ms + 2e-6
    judged = links(run, job_facts(run), found)
    assert judged is None or judged.slow_groups == ()
