"""Bandwidth conventions against nccl-tests, and the latency-bandwidth fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl
import pytest

from ddiag.analysis.bandwidth import algorithm_gbps, bus_factor, fit_latency_bandwidth, message_bytes
from tests.shared import shared_data

MIB = 1 << 20


def call(**given: Any) -> dict[str, Any]:
    row = {"op": "all_reduce", "bytes_in": MIB, "bytes_out": MIB, "group_size": 8, **given}
    schema = {"op": pl.String, "bytes_in": pl.Int64, "bytes_out": pl.Int64, "group_size": pl.Int32}
    frame = pl.DataFrame([row], schema=schema)
    return frame.select(size=message_bytes(), factor=bus_factor()).row(0, named=True)


@pytest.mark.parametrize(
    ("given", "size", "factor"),
    [
        ({"op": "all_reduce"}, MIB, 2 * 7 / 8),
        ({"op": "all_gather", "bytes_in": MIB, "bytes_out": 8 * MIB}, 8 * MIB, 7 / 8),
        ({"op": "all_gather", "bytes_in": MIB, "bytes_out": None}, 8 * MIB, 7 / 8),
        ({"op": "reduce_scatter", "bytes_in": 8 * MIB, "bytes_out": MIB}, 8 * MIB, 7 / 8),
        ({"op": "reduce_scatter", "bytes_in": None, "bytes_out": MIB}, 8 * MIB, 7 / 8),
        ({"op": "all_to_all", "bytes_in": 3 * MIB, "bytes_out": 5 * MIB}, 3 * MIB, 7 / 8),
        ({"op": "broadcast"}, MIB, 1.0),
        ({"op": "send", "bytes_out": None}, MIB, 1.0),
        ({"op": "barrier"}, None, None),
        ({"op": "unknown"}, MIB, None),
        ({"op": "all_reduce", "bytes_in": None, "bytes_out": None}, None, 2 * 7 / 8),
        ({"op": "all_reduce", "group_size": None}, MIB, None),
    ],
)
def test_size_and_factor_follow_nccl_tests(given: dict[str, Any], size: int | None, factor: float | None) -> None:
    assert call(**given) == {"size": size, "factor": pytest.approx(factor) if factor is not None else None}


def test_the_group_counts_not_the_world() -> None:
    assert call(group_size=2)["factor"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("log", "op"), [("nccl_allreduce.log", "all_reduce"), ("nccl_allgather.log", "all_gather"),
                    ("nccl_reducescatter.log", "reduce_scatter"), ("nccl_broadcast.log", "broadcast")]
)  # fmt: skip
def test_bus_bandwidth_equals_what_nccl_tests_prints(log: str, op: str) -> None:
    text = shared_data("microsoft+superbenchmark", log).read_text()
    rows = [line.split() for line in text.splitlines() if re.match(r"^\s+\d{7,}\s", line)]
    assert len(rows) > 5
    for row in rows:
        size, (us, algbw, busbw) = int(row[0]), (float(cell) for cell in row[-4:-1])
        frame = pl.DataFrame({"op": [op], "group_size": [8], "bytes": [size], "ms": [us / 1e3]})
        ours = frame.select(alg=algorithm_gbps("bytes", "ms"), factor=bus_factor()).row(0, named=True)
        assert ours["alg"] == pytest.approx(algbw, rel=0.02, abs=0.02)
        assert ours["alg"] * ours["factor"] == pytest.approx(busbw, rel=0.02, abs=0.02)


def test_no_bandwidth_without_time_or_bytes() -> None:
    frame = pl.DataFrame({"bytes": [None, 10, 0], "ms": [1.0, 0.0, 1.0]})
    assert frame.select(algorithm_gbps("bytes", "ms")).to_series().to_list() == [None, None, None]


def test_the_fit_recovers_latency_and_bandwidth_despite_outliers() -> None:
    random = np.random.default_rng(7)
    sizes = np.repeat([1, 2, 4, 8, 16, 25], 9) * float(MIB)
    times = (0.030 + sizes / 100e6) * random.normal(1.0, 0.02, sizes.size)
    times[::9] *= 5
    fit = fit_latency_bandwidth(sizes.tolist(), times.tolist())
    assert fit is not None
    assert fit.alpha_us == pytest.approx(30.0, abs=12.0)
    assert fit.beta_gbps == pytest.approx(100.0, rel=0.05)
    assert fit.ms(MIB) == pytest.approx(0.030 + MIB / 100e6, rel=0.3)


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ([MIB, 2 * MIB], [1.0, 2.0]),
        ([MIB, 1.1 * MIB, 1.2 * MIB], [1.0, 1.1, 1.2]),
        ([MIB, 2 * MIB, 4 * MIB], [3.0, 2.0, 1.0]),
        ([MIB, 2 * MIB, 4 * MIB, 8 * MIB], [5.0, 0.2, 30.0, 3.0]),
        ([0, 0, 0], [1.0, 1.0, 1.0]),
    ],
)
def test_no_fit_where_the_model_does_not_describe_the_measurements(sizes: list[float], times: list[float]) -> None:
    assert fit_latency_bandwidth(sizes, times) is None
