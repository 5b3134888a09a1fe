"""What the tests of recorded communication share: tiers that can run here, and comparisons with torch's own log."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ddiag.capture.native.build import cached
from ddiag.schema.phases import Op, Phase
from ddiag.schema.steps import UNKNOWN
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


def seen_by(rank: RankRecording, tier: str) -> list[Call]:
    """The calls of the job's own account without those that *tier* is known not to see."""
    unseen = rank.truth["monitored"] if tier == "hooks" else []
    return [one for at, one in enumerate(rank.true_calls) if at not in unseen]


def reduces_each_gradient(rank: RankRecording, times: int) -> bool:
    """By arithmetic alone: in backward of every step *times* as many bytes as there are gradients, and nothing else."""
    for step in range(len(rank.steps)):
        calls = [one for one in rank.collectives if one.step == step and one.phase == Phase.BACKWARD]
        assert {Op(one.op) for one in calls} <= {Op.ALL_REDUCE}
        sent = sum(one.bytes_in for one in calls if one.op == Op.ALL_REDUCE)
        assert sent == times * rank.truth["bytes"], step
        # The buckets are rebuilt, for which ranks talk, in the forward after the first synchronisation.
        assert step < 2 or len([one for one in rank.collectives if one.step == step]) == len(calls)
    return True


def agrees_where_it_looked(rank: RankRecording) -> set[int]:
    """The steps a sampling tier looked at: it has what torch logged of each, numbers and all, and nothing of others."""
    true = list(zip(rank.true_calls, rank.truth["sequence"], strict=True))
    found = [(rank.call(one), one.seq) for one in rank.collectives]
    looked = {one.step for one in rank.steps if one.comm_count != UNKNOWN}
    for step in range(len(rank.steps)):
        wanted = [one for one in true if one[0].step == step] if step in looked else []
        assert [one for one in found if one[0].step == step] == wanted, step
    return looked
