"""The charts: what they draw adds up, what they leave out is said."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import polars as pl
import pytest

from ddiag.model.signals import Collectives, Signals
from ddiag.plots import communication, heat_map, kernels, memory, palette, step_time
from ddiag.plots.chart import Chart, plain, shorten
from tests.factories import GIB, MIB, budget_table, make_signals


def drawn(chart: Chart | None) -> dict[str, Any]:
    assert chart is not None
    return json.loads(chart.figure_json())  # type: ignore[no-any-return]


def numbers(values: Any) -> list[float]:
    assert isinstance(values, list), "typed arrays would not survive the page's own handling"
    return values


def test_the_waterfall_ends_where_the_measured_step_does() -> None:
    bars = drawn(step_time.waterfall(make_signals(step_budget={"comm_wait_ms": 30.0})))["data"]
    *parts, total = bars
    for before, after in pairwise(parts):
        assert after["base"][0] == pytest.approx(before["base"][0] + before["x"][0])
    assert parts[-1]["base"][0] + parts[-1]["x"][0] == pytest.approx(total["x"][0]) == pytest.approx(200.0)
    assert parts[0]["y"] == ["Ideal: compute only"]


def test_the_waterfall_says_when_waiting_hides_in_communication() -> None:
    matched, single = make_signals(), make_signals(collectives={"matched_ranks": 1})
    assert step_time.waterfall(matched).note == ""  # type: ignore[union-attr]
    assert "waiting" in step_time.waterfall(single).note  # type: ignore[union-attr]


def test_the_parts_of_each_rank_add_up_to_its_step() -> None:
    signals = make_signals(step_budget={"comm_wait_ms": {3: 40.0}, "input_ms": {1: 9.0}})
    figure = drawn(step_time.rank_bars(signals))
    for k in range(8):
        assert sum(numbers(trace["x"])[k] for trace in figure["data"]) == pytest.approx(200.0)


def test_the_rank_that_waits_least_comes_first_where_ranks_wait() -> None:
    late = drawn(
        step_time.rank_bars(make_signals(step_budget={"comm_wait_ms": {**dict.fromkeys(range(8), 50.0), 5: 1.0}}))
    )
    assert late["layout"]["yaxis"]["categoryarray"][0].startswith("rank 5")
    alone = budget_table(compute_ms={2: 400.0}, comm_wait_ms=0.0)
    longest = drawn(step_time.rank_bars(make_signals(step_budget={"table": alone})))
    assert longest["layout"]["yaxis"]["categoryarray"][0].startswith("rank 2")


def test_of_many_ranks_the_named_ones_are_always_drawn() -> None:
    ranks = tuple(range(300))
    waits = {rank: 10.0 + rank * 0.1 for rank in ranks}
    signals = make_signals(job_facts={"ranks": ranks, "hosts": ()}, steps=2, step_budget={"comm_wait_ms": waits})
    chart = step_time.rank_bars(signals, culprits=[222])
    labels = drawn(chart)["data"][0]["y"]
    assert len(labels) == 13
    assert {"rank 0", "rank 9", "rank 150", "rank 222", "rank 299"} <= set(labels)
    assert "13 of 300 ranks" in chart.note  # type: ignore[union-attr]


def test_one_rank_has_steps_and_no_comparison() -> None:
    signals = make_signals(job_facts={"ranks": (0,)}, steps=7)
    assert step_time.rank_bars(signals) is None
    assert heat_map.heat_map(signals) is None
    figure = drawn(step_time.step_bars(signals))
    assert figure["data"][0]["x"] == [str(k) for k in range(7)]


def test_of_many_steps_the_longest_are_drawn_in_order() -> None:
    chart = step_time.step_bars(make_signals(job_facts={"ranks": (0,)}, steps=400))
    steps = [int(step) for step in drawn(chart)["data"][0]["x"]]
    assert len(steps) == 120
    assert steps == sorted(steps)
    assert "120 of 400 steps" in chart.note  # type: ignore[union-attr]


def test_warm_up_steps_are_in_no_chart() -> None:
    signals = make_signals(job_facts={"ranks": (0,)}, step_budget={"warmup": 2})
    assert drawn(step_time.step_bars(signals))["data"][0]["x"] == ["2", "3", "4", "5", "6"]


def test_parts_that_are_unknown_do_not_break_a_chart() -> None:
    table = budget_table().with_columns(pl.lit(None).cast(pl.Float64).alias("comm_wait_ms"))
    signals = make_signals(step_budget={"table": table, "step_ms": 200.0})
    assert all("Waiting" not in trace["y"][0] for trace in drawn(step_time.waterfall(signals))["data"])
    assert step_time.rank_bars(signals) is not None
    assert heat_map.heat_map(signals) is not None


def test_the_heat_map_offers_only_what_was_measured() -> None:
    chart = heat_map.heat_map(make_signals(input_wait=None, step_budget={"input_ms": 0.0}))
    assert chart is not None
    assert chart.switch is not None
    assert [words for words, _ in chart.switch.options] == ["Own time", "Waiting", "Compute", "Step time"]
    assert len(numbers(drawn(chart)["data"][0]["z"])) == 8


def test_many_steps_share_columns_of_the_heat_map() -> None:
    chart = heat_map.heat_map(make_signals(steps=450))
    grid = drawn(chart)["data"][0]["z"]
    assert len(grid[0]) == 150
    assert "longest of 3 steps" in chart.note  # type: ignore[union-attr]


def test_a_slow_rank_among_a_thousand_is_not_averaged_away() -> None:
    ranks = tuple(range(1000))
    waits = {**dict.fromkeys(ranks, 50.0), 613: 0.0}
    signals = make_signals(job_facts={"ranks": ranks, "hosts": ()}, steps=2, step_budget={"comm_wait_ms": waits})
    trace = drawn(heat_map.heat_map(signals))["data"][0]
    assert len(trace["z"]) == 250
    assert [label for label, row in zip(trace["y"], trace["z"], strict=True) if row[0] == 200] == ["ranks 612–615"]


def test_a_missing_rank_and_step_stays_empty_in_the_heat_map() -> None:
    table = budget_table().filter(~((pl.col("rank") == 2) & (pl.col("step") == 1)))
    grid = drawn(heat_map.heat_map(make_signals(step_budget={"table": table})))["data"][0]["z"]
    assert grid[2][1] is None
    assert grid[2][0] is not None


def test_noise_does_not_fill_the_colour_range() -> None:
    trace = drawn(heat_map.heat_map(make_signals(step_budget={"comm_wait_ms": {3: 1.0}})))["data"][0]
    assert trace["zmin"] <= 0.8 * trace["zmax"] + 1e-9


def test_bandwidth_points_stand_at_their_size_under_what_was_expected() -> None:
    figure = drawn(communication.bandwidth_chart(make_signals()))
    expected, measured = figure["data"]
    assert expected["name"] == "expected"
    assert measured["x"] == [25 * MIB]
    assert measured["y"][0] < expected["y"][0]
    assert figure["layout"]["xaxis"]["ticktext"] == ["16 MiB", "32 MiB"]


def test_without_matched_ranks_there_is_no_bandwidth_to_draw() -> None:
    plain_signals = make_signals()
    summary = communication.collective_summary(plain_signals)
    assert summary is not None
    unknown = summary.drop("expected_gbps", "efficiency").with_columns(pl.lit(None, pl.Float64).alias("busbw_gbps"))
    assert communication.bandwidth_chart(make_signals(collectives={"summary": unknown})) is None


def test_a_bucket_is_hidden_plus_exposed() -> None:
    chart = communication.bucket_chart(make_signals(grad_buckets={"exposed_ms": 0.5}))
    hidden, exposed = drawn(chart)["data"]
    assert numbers(exposed["y"])[-1] == 0.5
    assert numbers(hidden["y"])[-1] == pytest.approx(0.8)
    assert chart.title == "Gradient buckets: 40 per step, median 25.0 MiB"  # type: ignore[union-attr]


def test_memory_lines_are_of_the_fullest_devices_with_the_capacity() -> None:
    chart = memory.memory_timeline(make_signals(memory={"allocated": {5: 0.95}, "reserved": {5: 0.97}}))
    figure = drawn(chart)
    assert figure["data"][0]["name"].startswith("rank 5")
    assert len(figure["layout"]["shapes"]) == 1
    assert figure["layout"]["shapes"][0]["y0"] == pytest.approx(85_017_493_504 / GIB)
    assert "4 of 8 devices" in chart.note  # type: ignore[union-attr]


def test_memory_without_a_known_capacity_has_no_line_for_it() -> None:
    figure = drawn(memory.memory_timeline(make_signals(memory={"capacity_bytes": None})))
    assert "shapes" not in figure["layout"]


def test_kernel_classes_are_longest_first_in_words() -> None:
    figure = drawn(kernels.kernel_classes(make_signals()))
    assert [trace["y"][0] for trace in figure["data"]][:2] == ["matmul (GEMM)", "attention"]


def test_a_host_only_trace_speaks_of_operators() -> None:
    host_only = make_signals(step_budget={"on_device": False})
    assert kernels.kernel_classes(host_only).title == "Operator time by class"  # type: ignore[union-attr]


def test_nothing_measured_draws_nothing() -> None:
    empty = Signals()
    charts = (
        step_time.waterfall, step_time.rank_bars, step_time.step_bars, heat_map.heat_map, communication.bandwidth_chart,
        communication.bucket_chart, memory.memory_timeline, kernels.kernel_classes,
    )  # fmt: skip
    assert [chart(empty) for chart in charts] == [None] * len(charts)


def test_every_colour_of_every_figure_has_a_dark_twin() -> None:
    import re

    dark = palette.dark_of()
    signals = make_signals(step_budget={"comm_wait_ms": 20.0})
    for chart in (step_time.waterfall(signals), step_time.rank_bars(signals), heat_map.heat_map(signals),
                  communication.bandwidth_chart(signals), communication.bucket_chart(signals),
                  memory.memory_timeline(signals), kernels.kernel_classes(signals)):  # fmt: skip
        assert chart is not None
        assert set(re.findall(r"#[0-9a-f]{6}\b", chart.figure_json())) <= set(dark)


def test_the_style_sheet_draws_activities_in_the_same_colours() -> None:
    from ddiag._paths import reports_folder

    light, dark = (reports_folder() / "assets" / "tokens.css").read_text(encoding="utf-8").split("@media", maxsplit=1)
    for activity in palette.ACTIVITIES:
        assert f"--{activity.key}: {activity.light};" in light
        assert f"--{activity.key}: {activity.dark};" in dark


def test_names_are_cut_in_the_middle_and_escaped() -> None:
    assert shorten("a" * 50 + "b" * 50, 11) == "aaaaaa…bbbb"
    assert shorten("short", 11) == "short"
    assert plain("a<b>&") == "a&lt;b&gt;&amp;"


def test_a_rare_call_is_seen_in_few_steps() -> None:
    """Its figures per step are means over the steps that have it."""
    signals = make_signals()
    found = signals.get(Collectives)
    assert found is not None
    rare = found.table.filter(pl.col("step") == found.table["step"].max()).head(1).with_columns(op=pl.lit("broadcast"))
    usual = found.table.with_columns(pl.col("op").cast(pl.String))
    row = found.summary.head(1).with_columns(op=pl.lit("broadcast"))
    changed = dataclasses.replace(
        found,
        table=pl.concat([usual, rare.select(usual.columns).cast(usual.schema)]),
        summary=pl.concat([found.summary.with_columns(pl.col("op").cast(pl.String)), row]),
    )
    rows = communication.collective_summary(make_signals(collectives=changed))
    assert rows is not None
    steps = dict(rows.select("op", "steps").iter_rows())
    assert steps.pop("broadcast") == 1
    assert set(steps.values()) == {found.table["step"].n_unique()}
