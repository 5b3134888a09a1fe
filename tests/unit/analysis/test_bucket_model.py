"""What a different bucket size would do."""

from __future__ import annotations

import numpy as np
import pytest

from ddiag.analysis.bandwidth import LatencyBandwidth
from ddiag.analysis.bucket_model import ReadyCurve, advise, exposed_ms, split_evenly

MIB = 1 << 20


def curve(buckets: int, bucket_bytes: int, backward_ms: float = 100.0) -> ReadyCurve:
    """Gradients become ready evenly over backward."""
    ready = np.linspace(backward_ms / buckets, backward_ms, buckets)
    return ReadyCurve(ready, np.full(buckets, float(bucket_bytes)), backward_ms)


def link(alpha_us: float = 50.0, gbps: float = 50.0) -> LatencyBandwidth:
    return LatencyBandwidth(alpha_us, gbps, 0.0)


def test_only_what_outlasts_backward_is_exposed() -> None:
    observed = curve(10, 25 * MIB)
    last_ms = 0.05 + 25 * MIB / 50e6
    assert exposed_ms(observed, observed.bytes, link()) == pytest.approx(last_ms)


def test_a_slow_link_queues_its_buckets() -> None:
    observed = curve(10, 25 * MIB)
    slow = link(gbps=1.0)
    total_ms = 10 * (0.05 + 25 * MIB / 1e6)
    assert exposed_ms(observed, observed.bytes, slow) == pytest.approx(10.0 + total_ms - 100.0)


def test_buckets_are_split_as_ddp_does() -> None:
    sizes = split_evenly(100 * MIB, 25 * MIB)
    assert sizes[0] == MIB
    assert sizes.sum() == 100 * MIB
    assert sizes.max() == 25 * MIB


def test_many_tiny_buckets_are_advised_to_grow() -> None:
    advice = advise(curve(4000, MIB // 16), link(alpha_us=60.0), measured_exposed_ms=200.0)
    assert advice.best_bytes >= MIB
    assert advice.predicted_gain_ms == pytest.approx(145.0, abs=10.0)


def test_one_huge_bucket_is_advised_to_shrink() -> None:
    advice = advise(curve(1, 2000 * MIB), link(), measured_exposed_ms=42.0)
    assert advice.best_bytes < 500 * MIB
    assert 20.0 < advice.predicted_gain_ms <= 42.0


def test_good_buckets_are_left_alone() -> None:
    advice = advise(curve(40, 25 * MIB), link(), measured_exposed_ms=0.6)
    assert (advice.best_bytes, advice.predicted_gain_ms) == (25 * MIB, 0.0)


def test_the_gain_is_never_more_than_what_was_exposed() -> None:
    advice = advise(curve(4000, MIB // 16), link(alpha_us=60.0), measured_exposed_ms=7.0)
    assert advice.predicted_gain_ms == 7.0
