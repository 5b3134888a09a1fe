"""What a different bucket size would do: replay a backward pass with other buckets (algorithm D11).

Gradients become ready along the observed curve; a bucket is reduced when its last gradient is ready and the bucket
before it is done, in alpha + bytes / B. What is not done when backward ends is exposed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddiag.analysis.bandwidth import LatencyBandwidth

Floats = npt.NDArray[np.float64]

MIB = 1 << 20
FIRST_BUCKET_BYTES = MIB
"""DDP keeps the first bucket small so that reduction starts early."""
TOLERANCE_SHARE = 0.02
"""Bucket sizes whose backward plus exposed time is this close to the best are as good."""


@dataclass(frozen=True)
class ReadyCurve:
    """When how many gradient bytes of one backward pass were ready, ms from its start."""

    ready_ms: Floats
    """Of each bucket in launch order, ascending."""
    bytes: Floats
    """Of each bucket."""
    backward_ms: float

    def at(self, cumulative_bytes: Floats) -> Floats:
        """When that many bytes were ready, by interpolation between the observed buckets."""
        done = np.concatenate(([0.0], np.cumsum(self.bytes)))
        begin = max(self.ready_ms[0] - self._first_bucket_ms(), 0.0)
        return np.asarray(np.interp(cumulative_bytes, done, np.concatenate(([begin], self.ready_ms))))

    def _first_bucket_ms(self) -> float:
        """How long the first bucket took to fill, at the mean rate of the others."""
        if len(self.bytes) < 2:
            return float(self.ready_ms[0])
        rate = (self.ready_ms[-1] - self.ready_ms[0]) / self.bytes[1:].sum()
        return float(rate * self.bytes[0])


@dataclass(frozen=True)
class BucketAdvice:
    best_bytes: int
    predicted_gain_ms: float


def exposed_ms(curve: ReadyCurve, bucket_bytes: Floats, link: LatencyBandwidth) -> float:
    """Time by which the last of these buckets outlasts backward."""
    ready = curve.at(np.cumsum(bucket_bytes))
    done = 0.0
    for at, size in zip(ready, bucket_bytes, strict=True):
        done = max(float(at), done) + link.ms(float(size))
    return max(done - curve.backward_ms, 0.0)


def split_evenly(total_bytes: float, bucket_bytes: int) -> Floats:
    """Buckets of at most *bucket_bytes*, a small one first, as DDP makes them."""
    first = min(FIRST_BUCKET_BYTES, bucket_bytes, total_bytes)
    rest = total_bytes - first
    full = int(rest // bucket_bytes)
    sizes = [first, *([float(bucket_bytes)] * full)]
    if rest > full * bucket_bytes:
        sizes.append(rest - full * bucket_bytes)
    return np.array(sizes, dtype=np.float64)


def advise(curve: ReadyCurve, link: LatencyBandwidth, measured_exposed_ms: float) -> BucketAdvice:
    """The smallest bucket size (1, 2, 4 … MiB) within 2 % of the best, and what it saves against the observed buckets.

    The observed size is kept when it is among the good ones. The gain is never more than what was measured as exposed.
    """
    total = float(curve.bytes.sum())
    now_ms = exposed_ms(curve, curve.bytes, link)
    sizes = [MIB << k for k in range(10) if k == 0 or (MIB << k) < 2 * total]
    after_ms = {size: exposed_ms(curve, split_evenly(total, size), link) for size in sizes}
    best_ms = min(after_ms.values())
    allowed_ms = best_ms + TOLERANCE_SHARE * (curve.backward_ms + best_ms)
    if now_ms <= allowed_ms:
        return BucketAdvice(int(np.median(curve.bytes)), 0.0)
    best = next(size for size in sizes if after_ms[size] <= allowed_ms)
    return BucketAdvice(best, max(min(now_ms - after_ms[best], measured_exposed_ms), 0.0))
