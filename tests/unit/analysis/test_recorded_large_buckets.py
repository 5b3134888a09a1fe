"""DD404 from a recording: the reducer waits inside backward, where a recorded pass must not be taken for computing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.analysis import derive
from ddiag.api import diagnose, load
from ddiag.model.run import Run
from ddiag.model.signals import GradBuckets
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from tests.recordings import MS, TID, Plan, Writer, files_of, write_run

MIB = 1 << 20
TOTAL_MIB, BACKWARD_MS = 100, 60.0
MIB_PER_MS = 2.5
"""40 ms for all gradients."""


class Reducing(Writer):
    """A rank whose gradients become ready evenly over backward, and are reduced in *buckets* of the same size."""

    def train(self, buckets: int) -> None:
        for number in range(self.plan.steps):
            begin, spent = self.now, [0] * 16
            self._phase(number, Phase.FORWARD, 30.0, spent)
            token, free = self._begin_phase(number, Phase.BACKWARD), 0
            for bucket in range(buckets):
                self.now += int(BACKWARD_MS / buckets * MS)
                free = max(free, self.now) + int(TOTAL_MIB / buckets / MIB_PER_MS * MS)
                self._reduction(number, bucket, TOTAL_MIB * MIB // buckets, free)
            self.now = max(free, self.now) + MS  # the reducer has waited, and copies the last bucket
            self.ring.complete(token, self.now)
            self._phase(number, Phase.OPTIMIZER, 8.0, spent)
            self._summary(number, begin, spent, 0)
        self.ring.close(self.now)

    def _reduction(self, step: int, bucket: int, size: int, end: int) -> None:
        token = self.ring.begin(
            Kind.COLLECTIVE, Op.ALL_REDUCE, Flag.ASYNC | Flag.FROM_NATIVE, self.group,
            self.names.id(f"ddp0/bucket{bucket}"), step, Phase.BACKWARD, self.dtype, -1, -1, self.now, self.now, 0,
            size, size, TID, 0.0, State.OPEN, 0,
        )  # fmt: skip
        self.ring.complete(token, end)


def job(folder: Path, buckets: int) -> Run:
    run = write_run(folder / "run")
    for rank in range(2):
        plan = Plan(rank=rank)
        files = files_of(run, plan)
        files.folder.mkdir(parents=True, exist_ok=True)
        Reducing(files, plan).train(buckets)
    return load([str(run)])


def test_one_bucket_of_all_gradients_is_reduced_after_all_of_backward(tmp_path: Path) -> None:
    run = job(tmp_path, 1)
    buckets = derive(run).get(GradBuckets)
    assert buckets is not None
    assert buckets.tail_exposed_ms == pytest.approx(TOTAL_MIB / MIB_PER_MS, rel=0.01)
    found = {one.rule: one for one in diagnose(run).findings}
    assert found["DD404"].cost.ms_per_step == pytest.approx(TOTAL_MIB / MIB_PER_MS, rel=0.01)


def test_smaller_ones_are_reduced_beside_backward_and_the_last_after_it(tmp_path: Path) -> None:
    run = job(tmp_path, 4)
    buckets = derive(run).get(GradBuckets)
    assert buckets is not None
    assert buckets.tail_exposed_ms == pytest.approx(TOTAL_MIB / 4 / MIB_PER_MS, rel=0.01)
    assert "DD404" not in {one.rule for one in diagnose(run).findings}
