"""Message size, algorithm and bus bandwidth of collectives by the conventions of nccl-tests (doc/PERFORMANCE.md).

algbw = S / t and busbw = algbw x factor(n), where n is the size of the *group* and S the "large" buffer of the
collective. Bandwidths are GB/s with G = 1e9, as nccl-tests prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]

_RING = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_ONE_WAY = ("broadcast", "reduce", "send", "recv", "send_recv")

MIN_SIZES = 3
"""Distinct sizes that a latency-bandwidth fit needs."""
MIN_SIZE_RATIO = 2.0
"""Largest / smallest size below which latency and bandwidth cannot be told apart."""
MAX_RESIDUAL = 0.25
"""Median relative error from which the model t = alpha + S / B does not describe the measurements."""


def message_bytes() -> pl.Expr:
    """S of a row with ``op, bytes_in, bytes_out, group_size``; null when the evidence does not give it.

    all_gather: the gathered output; reduce_scatter: the input; all_to_all: what one rank sends; else the tensor.
    """
    incoming, outgoing, size = pl.col("bytes_in"), pl.col("bytes_out"), pl.col("group_size").cast(pl.Int64)
    larger = pl.max_horizontal(incoming, outgoing)
    gathered = pl.max_horizontal(outgoing, incoming * size)
    scattered = pl.max_horizontal(incoming, outgoing * size)
    return (
        pl.when(pl.col("op") == "all_gather")
        .then(pl.when(size.is_null()).then(larger).otherwise(gathered))
        .when(pl.col("op") == "reduce_scatter")
        .then(pl.when(size.is_null()).then(larger).otherwise(scattered))
        .when(pl.col("op") == "all_to_all")
        .then(pl.coalesce(incoming, outgoing))
        .when(pl.col("op") == "barrier")
        .then(None)
        .otherwise(larger)
        .cast(pl.Int64)
    )


def bus_factor() -> pl.Expr:
    """busbw / algbw of a row with ``op, group_size``; null for an unknown operation or group size."""
    size = pl.col("group_size").cast(pl.Float64)
    rest = pl.when(size > 0).then((size - 1.0) / size)
    return (
        pl.when(pl.col("op") == "all_reduce")
        .then(2.0 * rest)
        .when(pl.col("op").is_in(_RING))
        .then(rest)
        .when(pl.col("op").is_in(_ONE_WAY))
        .then(1.0)
        .otherwise(None)
    )


def algorithm_gbps(bytes_column: str, ms_column: str) -> pl.Expr:
    """S / t in GB/s; null where either is unknown, empty or takes no time."""
    size, ms = pl.col(bytes_column), pl.col(ms_column)
    return pl.when((ms > 0) & (size > 0)).then(size / ms / 1e6)


@dataclass(frozen=True)
class LatencyBandwidth:
    """t(S) = alpha + S / beta."""

    alpha_us: float
    beta_gbps: float
    residual: float
    """Median relative error over the sizes fitted."""

    def ms(self, size_bytes: float) -> float:
        """Predicted time of one message."""
        return self.alpha_us / 1e3 + size_bytes / (self.beta_gbps * 1e6)


def fit_latency_bandwidth(sizes_bytes: Sequence[float], times_ms: Sequence[float]) -> LatencyBandwidth | None:
    """Fit t = alpha + S / B by Theil-Sen over the median time of each size.

    None when there are fewer than three distinct sizes, when they are too alike to tell latency from bandwidth, when
    time does not grow with size, or when the line does not describe the measurements.
    """
    sizes, times = _medians(np.asarray(sizes_bytes, float), np.asarray(times_ms, float))
    if sizes.size < MIN_SIZES or sizes[-1] / sizes[0] < MIN_SIZE_RATIO:
        return None
    first, second = np.triu_indices(sizes.size, k=1)
    slope = float(np.median((times[second] - times[first]) / (sizes[second] - sizes[first])))
    if slope <= 0:
        return None
    alpha = float(np.median(times - slope * sizes))
    if alpha < -0.1 * float(times.min()):
        return None
    alpha = max(alpha, 0.0)
    residual = float(np.median(np.abs(alpha + slope * sizes - times) / times))
    if residual > MAX_RESIDUAL:
        return None
    return LatencyBandwidth(alpha * 1e3, 1.0 / slope / 1e6, residual)


def _medians(sizes: Floats, times: Floats) -> tuple[Floats, Floats]:
    """Distinct positive sizes, ascending, with the median time of each."""
    good = (sizes > 0) & (times > 0) & np.isfinite(times)
    sizes, times = sizes[good], times[good]
    distinct = np.unique(sizes)
    return distinct, np.array([np.median(times[sizes == size]) for size in distinct])
