"""What the tests of recorded communication share: tiers that can run here, and comparisons with torch's own log."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ddiag.capture.native.build import cached
from tests.integration.recording import Call, RankRecording

torch = pytest.importorskip("torch")

BUILT = cached(torch.version).exists()
TIERS = [
    pytest.param("native", marks=pytest.mark.skipif(not BUILT, reason="the native kernel is not built for this torch")),
    "dispatch",
]
"""Of the torch the tests run with."""
BEST = "native" if BUILT else "dispatch"
FLOAT = 4


def as_torch_logs(calls: Iterable[Call]) -> list[Call]:
    """Torch's Flight Recorder shows gloo's reduce_scatter as an all_reduce of its input."""
    return [
        Call("all_reduce", one.group, one.bytes_in, one.bytes_in, one.step) if one.op == "reduce_scatter" else one
        for one in calls
    ]


def labels(rank: RankRecording, step: int) -> list[tuple[str, str | None]]:
    """(op, label) of what one rank issued in a step, in order."""
    return [(rank.call(one).op, rank.label(one)) for one in rank.collectives if one.step == step]


def increasing(rank: RankRecording) -> bool:
    """Collectives of every group are numbered 1, 2, 3 …"""
    seen: dict[int, list[int]] = {}
    for one in rank.collectives:
        if rank.call(one).op not in ("send", "recv"):
            seen.setdefault(one.group, []).append(one.seq)
    return all(numbers == list(range(1, len(numbers) + 1)) for numbers in seen.values())
