"""DD406 from a recording: calls timed on devices whose name tells what their links give."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.api import diagnose, load
from ddiag.rulekit import Finding
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.ring import NO_NAME
from ddiag.schema.samples import encode
from tests.recordings import MS, TID, Plan, Writer, files_of, write_run
from tests.unit.analysis.sampling import GIB, Node

NVLINK = 330.0
"""GB/s of bus bandwidth between two H100; of an all-reduce of two ranks it is bytes over time."""
STEPS, FORWARD_MS, BACKWARD_MS, HOST_MS = 24, 30.0, 40.0, 1.0


class OnDevice(Writer):
    """A rank of a job on devices that reduces a GiB a step: after all of backward, or *beside* it, and a small one
    at its end."""

    def train(self, gbps: float, *, beside: bool, late_ms: float) -> None:
        for number in range(STEPS):
            begin, spent = self.now, [0] * 16
            self._phase(number, Phase.FORWARD, FORWARD_MS, spent)
            token = self._begin_phase(number, Phase.BACKWARD)
            if beside:
                self._reduce(number, gbps, Flag.ASYNC)
            self.now += int((BACKWARD_MS + late_ms) * MS)
            if beside:
                last = self.now - MS
                self._call(number, 4096, last, last + MS // 100, Flag.ASYNC)
            else:
                self._reduce(number, gbps, Flag(0))
            self.ring.complete(token, self.now)
            self._phase(number, Phase.OPTIMIZER, 8.0, spent)
            self._summary(number, begin, spent, 0)
        self.ring.close(self.now)

    def _reduce(self, number: int, gbps: float, flags: Flag) -> None:
        length = int(GIB / gbps)  # bytes over GB/s are ns
        self._call(number, GIB, self.now, self.now + length, flags)
        self.now += int(HOST_MS * MS) if flags else length

    def _call(self, number: int, size: int, start: int, end: int, flags: Flag) -> None:
        token = self.ring.begin(
            Kind.COLLECTIVE, Op.ALL_REDUCE, flags | Flag.END_UNKNOWN, self.group, NO_NAME, number, Phase.BACKWARD,
            self.dtype, -1, -1, start, start, 0, size, size, TID, 0.0, State.OPEN, 0,
        )  # fmt: skip
        self.ring.set_times(token, start, end, flags=Flag.DEVICE_TIMED)


def findings(folder: Path, gbps: float, *, beside: bool = False, late_ms: float = 0.0) -> dict[str, Finding]:
    """*late_ms*: the second rank comes so much later to each call, for which the first waits."""
    run = write_run(folder / "run")
    for rank, waits in enumerate((late_ms, 0.0)):
        plan = Plan(rank=rank, world=2, steps=STEPS, device_bytes=8 * GIB, reserved_bytes=9 * GIB)
        files = files_of(run, plan)
        files.folder.mkdir(parents=True, exist_ok=True)
        writer = OnDevice(files, plan)
        writer.train(GIB / (GIB / gbps + waits * MS), beside=beside, late_ms=late_ms - waits)
    (run / "nodes").mkdir()
    (run / "nodes" / "node0.samples").write_bytes(b"".join(encode(line) for line in Node().lines()))
    return {one.rule: one for one in diagnose(load([str(run)])).findings}


def test_half_the_rate_of_its_links_is_slow(tmp_path: Path) -> None:
    found = findings(tmp_path, 0.45 * NVLINK)["DD406"]
    seen = {one.label: one.value for one in found.evidence}
    assert seen["efficiency"] == pytest.approx(0.45, abs=0.001)
    assert seen["expected"] == NVLINK
    assert seen["message"] == GIB
    transfer_ms = GIB / (0.45 * NVLINK) / MS
    assert found.cost.ms_per_step == pytest.approx(transfer_ms * (1 - 0.45), rel=0.01), "what the links would save"


def test_a_little_more_than_half_is_not(tmp_path: Path) -> None:
    assert "DD406" not in findings(tmp_path, 0.55 * NVLINK)


def test_who_waits_for_a_late_rank_has_no_slow_link(tmp_path: Path) -> None:
    """Its call takes five times as long."""
    assert "DD406" not in findings(tmp_path, 0.9 * NVLINK, late_ms=15.0)


def test_a_slow_link_that_computation_hides_costs_nothing(tmp_path: Path) -> None:
    assert "DD406" not in findings(tmp_path, 0.45 * NVLINK, beside=True)
