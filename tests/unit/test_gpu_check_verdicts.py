"""Verdicts of ``tools.gpu_check`` on a recording made up here: right, each passes; wrong in one thing, that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("numpy")

from ddiag.schema import steps
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.ring import Record
from tools import gpu_check_verdicts as judge
from tools.bench_recorder import Verdicts

MS, MIB = 1_000_000, 1 << 20
STEPS, LAYERS, HELD_BYTES = 8, 3, 4000
TRUTH: judge.Truth = {
    "layers": LAYERS,
    "trained_steps": STEPS,
    "over_ns": [(step + 1) * 100 * MS for step in range(STEPS)],
    "held_ms": 40.0,
    "held_bytes": HELD_BYTES,
    "peaks": [100 * MIB] * 5 + [900 * MIB] * 3,
    "copied_bytes": 8 << 30,
    "copy_steps": [5, 7],
    "uuid": "abc",
    "digest": "d",
    "graph": "g",
}


class Said(Verdicts):
    """Keeps what was said, by the words that say what about."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, str] = {}

    def line(self, what: str, figure: str, judged: str = "") -> None:
        super().line(what, figure, judged)
        self.lines[what.strip()] = judged

    @property
    def failures(self) -> list[str]:
        return [what for what, judged in self.lines.items() if judged == "FAIL"]


def reduction(step: int, at_ms: float, took_ms: float, size: int = MIB, *, late_ms: float = 0.0) -> Record:
    begin = int((step * 100 + at_ms) * MS)
    start = begin + int(late_ms * MS)
    return Record(
        0, Kind.COLLECTIVE, Op.ALL_REDUCE, Flag.DEVICE_TIMED, 0, -1, step, Phase.BACKWARD, 0, -1, 0, begin, start,
        start + int(took_ms * MS), size, size, 1, 0.0, State.DONE, 0,
    )  # fmt: skip


def records() -> list[Record]:
    found = [reduction(step, 10.0 * layer, 1.0) for step in range(STEPS) for layer in range(LAYERS)]
    return [*found, reduction(4, 2.0, 1.0, HELD_BYTES, late_ms=41.0), reduction(STEPS, 5.0, 900.0)]


def summaries() -> list[steps.StepRecord]:
    found = []
    for step in range(STEPS):
        spent = [0] * 16
        spent[Phase.H2D] = 80 * MS if 5 <= step < 7 else 0
        found.append(
            steps.empty(step)._replace(phase_ns=tuple(spent), device_peak_allocated_bytes=TRUTH["peaks"][step])
        )
    return found


def entries() -> list[dict[str, Any]]:
    """Two devices, of which the second is the job's."""
    idle = {"util": 0, "pcie_rx_bytes": 7}
    busy = [{"util": 90 if at == 3 else 2, "pcie_rx_bytes": at * 2 << 30} for at in range(6)]
    listed = {"kind": "devices", "devices": [{"uuid": "GPU-other"}, {"uuid": "GPU-abc"}]}
    return [listed, *({"kind": "sample", "devices": [idle, one]} for one in busy)]


def sampled(mine: dict[str, Any], *, nvml: bool = True) -> Callable[[Said], None]:
    changed = [
        {**one, "devices": [one["devices"][0], {**one["devices"][1], **mine}]} if one["kind"] == "sample" else one
        for one in entries()
    ]
    return lambda said: judge.samples(changed, TRUTH, said, nvml=nvml)


def failures(verdict: Callable[[Said], None]) -> list[str]:
    said = Said()
    verdict(said)
    assert said.lines
    assert said.failed == bool(said.failures)
    return said.failures


RIGHT: list[Callable[[Said], None]] = [
    lambda said: judge.collectives([one for one in records() if one.bytes_in != HELD_BYTES], TRUTH, said),
    lambda said: judge.device_times(records(), TRUTH, said),
    lambda said: judge.memory(summaries(), TRUTH, said),
    lambda said: judge.copies(summaries(), TRUTH, said),
    lambda said: judge.samples(entries(), TRUTH, said, nvml=True),
    lambda said: judge.window(3, {"kernels": 2}, said),
    lambda said: judge.unchanged(TRUTH, TRUTH, "recorded", said),
]
"""The call that is held up is one of a warm step, which does not count for the reductions of a step."""


@pytest.mark.parametrize("verdict", RIGHT)
def test_a_right_recording_passes(verdict: Callable[[Said], None]) -> None:
    assert failures(verdict) == []


def timed(change: Callable[[Record], Record]) -> Callable[[Said], None]:
    """One record (that of step 6's second layer) or the one held up is not as it should be."""
    return lambda said: judge.device_times([change(one) for one in records()], TRUTH, said)


def chosen(**changes: int) -> Callable[[Record], Record]:
    return lambda one: one._replace(**changes) if (one.step, one.enqueue_ns) == (6, 610 * MS) else one


WRONG: list[tuple[Callable[[Said], None], str]] = [
    (lambda said: judge.collectives(records()[1:-LAYERS], TRUTH, said), "gradient reductions per recorded step"),
    (timed(chosen(flags=0)), "reductions timed on the device"),
    (timed(chosen(start_ns=600 * MS)), "begun before enqueued, or over after the step"),
    (timed(chosen(end_ns=710 * MS)), "begun before enqueued, or over after the step"),
    (timed(lambda one: one._replace(start_ns=one.enqueue_ns)), "the one held up began so late, ms"),
    (lambda said: judge.device_times([], TRUTH, said), "of those, so many at all"),
    (
        lambda said: judge.memory(
            [one._replace(device_peak_allocated_bytes=900 * MIB) for one in summaries()], TRUTH, said
        ),
        "memory peak, worst step, off by",
    ),
    (lambda said: judge.copies(summaries()[:6], TRUTH, said), "steps that copy to the device"),
    (lambda said: judge.samples(entries()[:4], TRUTH, said, nvml=True), "samples of the device"),
    (sampled({"util": 10}), "highest utilisation, %"),
    (sampled({"pcie_rx_bytes": 7}), "copied bytes seen on PCIe, part"),
    (lambda said: judge.window(0, {"kernels": 2}, said), "kernels in the profiler window"),
    (
        lambda said: judge.unchanged(TRUTH, {**TRUTH, "digest": "e"}, "recorded", said),
        "parameters and losses, recorded",
    ),
    (lambda said: judge.unchanged(TRUTH, {**TRUTH, "graph": "h"}, "recorded", said), "captured graph, recorded"),
]


@pytest.mark.parametrize(("verdict", "what"), WRONG)
def test_what_is_wrong_fails(verdict: Callable[[Said], None], what: str) -> None:
    assert what in failures(verdict)


def without(*keys: str) -> Callable[[Said], None]:
    kept = [
        {**one, "devices": [{k: v for k, v in device.items() if k not in keys} for device in one["devices"]]}
        for one in entries()
    ]
    return lambda said: judge.samples(kept, TRUTH, said, nvml=True)


@pytest.mark.parametrize(
    ("verdict", "what"),
    [
        (sampled({}, nvml=False), "samples of the device"),
        (without("pcie_rx_bytes"), "copied bytes seen on PCIe"),
        (without("util"), "highest utilisation"),
        (lambda said: judge.window(0, {"kernels": 0}, said), "kernels in the profiler window"),
    ],
)
def test_what_the_machine_does_not_offer_is_no_failure(verdict: Callable[[Said], None], what: str) -> None:
    said = Said()
    verdict(said)
    assert said.lines[what] == judge.NOT_HERE
    assert not said.failed
