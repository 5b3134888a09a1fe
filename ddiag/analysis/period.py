"""The period of a sequence of names: how training steps show when nothing marks them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]

_MATCH = 0.95
"""Share of positions that must repeat one period later."""
_MIN_PERIODS = 3
_LONGEST = 1 << 18
"""A prefix this long decides the period; a step is far shorter."""
_PROBES = 8


def period(codes: Codes) -> int | None:
    """Shortest period of *codes* that explains it as well as any; None when it does not repeat three times.

    Autocorrelation of random signs (one per code) by FFT proposes lags, an exact comparison decides. A shorter period
    that only holds inside (equal layers of a network) loses to the one that holds throughout.
    """
    codes = codes[:_LONGEST]
    longest = codes.size // _MIN_PERIODS
    if longest < 2:
        return None
    score = _autocorrelation(codes)[: longest + 1]
    score[:2] = 0.0
    proposals = np.flatnonzero(score >= 0.9 * score.max())[:200]
    matches = np.array([float(np.mean(codes[lag:] == codes[:-lag])) for lag in proposals])
    best = matches.max()
    if best < _MATCH or _constant(codes):
        return None
    return int(proposals[np.flatnonzero(matches >= 0.98 * best)[0]])


def period_starts(codes: Codes, start_ns: Codes, end_ns: Codes) -> Codes:
    """Times at which each period begins: the phase with the longest typical pause before it. Empty without a period."""
    length = period(codes)
    if length is None:
        return np.empty(0, dtype=np.int64)
    gaps = start_ns[1:] - np.maximum.accumulate(end_ns)[:-1]
    rounds = gaps.size // length
    pause = np.median(gaps[: rounds * length].reshape(rounds, length), axis=0)
    phase = (int(pause.argmax()) + 1) % length
    return start_ns[phase::length]


def _autocorrelation(codes: Codes) -> npt.NDArray[np.float64]:
    """Estimated share of equal pairs at each lag, from random signs so that unequal codes cancel out."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_PROBES, int(codes.max()) + 1))
    size = 1 << (2 * codes.size - 1).bit_length()
    total = np.zeros(codes.size)
    for row in signs:
        spectrum = np.fft.rfft(row[codes], size)
        total += np.fft.irfft(np.abs(spectrum) ** 2, size)[: codes.size]
    return total / _PROBES / np.arange(codes.size, 0, -1)


def _constant(codes: Codes) -> bool:
    """One name over and over has no step in it."""
    return bool((codes == codes[0]).mean() > 0.99)
