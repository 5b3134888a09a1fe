"""What a recording's training stood still for, where every time is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest

from ddiag.analysis import derive
from ddiag.analysis.recorded.blocked import blocked
from ddiag.analysis.steps import find_steps
from ddiag.api import diagnose
from ddiag.ingest import load
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, GradBuckets, Links, StepBudget
from ddiag.model.signals_recorded import StoodStill
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.ring import NO_DTYPE, NO_NAME
from tests.recordings import MS, TID, Plan, Writer, files_of, healthy, write_run

FORWARD_MS, BACKWARD_MS, TRANSFER_MS, HOST_MS = 30.0, 40.0, 12.0, 6.0
CALLS = 2
SIZE = 8 << 20


@dataclass(frozen=True)
class Reduction:
    """How a job reduces gradients."""

    phase: Phase | None = None
    """Phase of the training thread in which it reduces; None: after backward, in none."""
    late_ms: float = 0.0
    """How long each call waits for the other rank …"""
    busy_ms: float = 0.0
    """… which comes so much later to each."""
    device: bool = False
    """Timed on a device, which the host runs ahead of."""
    asynchronous: bool = False
    calls: int = CALLS
    activations: bool = False
    """Forward waits for the same group."""
    after_update: bool = False
    """An evaluation that says nothing of itself."""


class Reducing(Writer):
    """A rank that reduces as told."""

    free = 0
    """When the device's stream for communication is."""

    def train(self, how: Reduction) -> None:
        for number in range(self.plan.steps):
            begin, spent = self.now, [0] * 16
            self._phase(number, Phase.FORWARD, FORWARD_MS, spent)
            if how.activations:
                self._reduce_inside(number, how, Phase.FORWARD)
            if how.phase is Phase.BACKWARD:
                self._reduce_inside(number, how, Phase.BACKWARD)
            else:
                self._phase(number, Phase.BACKWARD, BACKWARD_MS, spent)
                if how.phase is not None:
                    self._reduce_inside(number, how, how.phase)
                elif not how.after_update:
                    self.now += MS  # the script's own, between backward and the first call
                    self._reduce(number, how, Phase.NONE)
            self._phase(number, Phase.OPTIMIZER, 8.0, spent)
            if how.after_update:
                self._reduce(number, how, Phase.NONE)
            self._summary(number, begin, spent, 0)
        self.ring.close(self.now)

    def _reduce_inside(self, number: int, how: Reduction, phase: Phase) -> None:
        token = self._begin_phase(number, phase)
        self.now += int(BACKWARD_MS * MS / 2)
        self._reduce(number, how, phase)
        self.now += int(BACKWARD_MS * MS / 2)
        self.ring.complete(token, self.now)

    def _reduce(self, number: int, how: Reduction, phase: Phase) -> None:
        for _ in range(how.calls):
            self.now += int(how.busy_ms * MS)
            if how.device:
                self._on_device(number, how, phase)
            else:
                self._awaited(number, how, phase)

    def _awaited(self, number: int, how: Reduction, phase: Phase) -> None:
        token = self._call(number, phase, Flag.FROM_NATIVE)
        end = self.now + int((how.late_ms + TRANSFER_MS) * MS)
        self.ring.complete(token, end)
        self.ring.begin(
            Kind.COLLECTIVE, Op.WAIT, 0, NO_NAME, NO_NAME, number, phase, NO_DTYPE, -1, -1, self.now, self.now, end,
            0, 0, TID, 0.0, State.DONE, 0,
        )  # fmt: skip
        self.now = end

    def _on_device(self, number: int, how: Reduction, phase: Phase) -> None:
        """The device comes to it 5 ms after the host, takes one after the other, and the host does not wait."""
        flags = Flag.END_UNKNOWN | (Flag.ASYNC if how.asynchronous else Flag(0))
        token = self._call(number, phase, flags)
        came = self.now + 5 * MS
        self.free = max(self.free, came) + int(TRANSFER_MS * MS)
        self.ring.set_times(token, came, self.free, flags=Flag.DEVICE_TIMED)
        self.now += int(HOST_MS * MS) if how.asynchronous else int(TRANSFER_MS * MS)

    def _call(self, number: int, phase: Phase, flags: int) -> int:
        return self.ring.begin(
            Kind.COLLECTIVE, Op.ALL_REDUCE, flags, self.group, NO_NAME, number, phase, self.dtype, -1,
            -1, self.now, self.now, 0, SIZE, SIZE, TID, 0.0, State.OPEN, 0,
        )  # fmt: skip


def job(folder: Path, *ranks: Reduction, steps: int = 12) -> Run:
    run = write_run(folder / "run")
    for rank, how in enumerate(ranks):
        plan = Plan(rank=rank, world=len(ranks), steps=steps)
        files = files_of(run, plan)
        files.folder.mkdir(parents=True, exist_ok=True)
        Reducing(files, plan).train(how)
    return load([str(run)])


def still(run: Run) -> StoodStill:
    calls = derive(run).get(Collectives)
    assert calls is not None
    assert calls.stood_still is not None
    return calls.stood_still


def test_without_a_steady_step_nothing_is_said(tmp_path: Path) -> None:
    run = job(tmp_path, Reduction(), Reduction())
    calls, windows = derive(run).get(Collectives), find_steps(run)
    assert calls is not None
    assert blocked(run, windows, calls) is not None
    unsteady = replace(windows, table=windows.table.with_columns(steady=pl.lit(value=False)))
    assert blocked(run, unsteady, calls) is None


def rules(run: Run) -> list[str]:
    return [one.rule for one in diagnose(run).findings]


@pytest.mark.parametrize(("phase", "issued"), [(None, "after_backward"), (Phase.BACKWARD, "synchronous")])
def test_reductions_that_are_waited_for_one_by_one_are_all_exposed(
    tmp_path: Path, phase: Phase | None, issued: str
) -> None:
    run = job(tmp_path, Reduction(phase), Reduction(phase))
    found = still(run)
    assert found.transfer_ms == pytest.approx(CALLS * TRANSFER_MS)
    assert found.blocked_ms == pytest.approx(CALLS * TRANSFER_MS)
    assert found.overlap_share == pytest.approx(0.0)
    buckets = derive(run).get(GradBuckets)
    assert buckets is not None
    assert buckets.issued == issued
    assert rules(run)[0] == "DD402"


def test_waiting_for_a_late_rank_is_no_communication(tmp_path: Path) -> None:
    run = job(tmp_path, Reduction(late_ms=50.0), Reduction(busy_ms=50.0))
    found = still(run)
    assert found.transfer_ms == pytest.approx(CALLS * TRANSFER_MS)
    assert found.blocked_ms == pytest.approx(CALLS * TRANSFER_MS)
    budget = derive(run).get(StepBudget)
    assert budget is not None
    assert budget.mean("comm_wait_ms") == pytest.approx(CALLS * 50.0 / 2)
    (late,) = [one for one in diagnose(run).findings if one.rule.startswith("DD50")]
    assert late.culprits.ranks == (1,)
    assert rules(run)[0] == late.rule


@pytest.mark.parametrize("buckets", [1, 2])
def test_the_tail_of_reductions_beside_backward_is_a_matter_of_bucket_sizes(tmp_path: Path, buckets: int) -> None:
    run = load([str(write_run(tmp_path / "run", *healthy(buckets=buckets, bucket_bytes=8 << 20)))])
    assert still(run).transfer_ms == pytest.approx(6.0 * buckets)
    assert still(run).blocked_ms == 0.0
    budget = derive(run).get(StepBudget)
    assert budget is not None
    assert budget.mean("comm_transfer_ms") == pytest.approx(6.0)
    assert "DD402" not in rules(run)


@pytest.mark.parametrize("phase", [None, Phase.BACKWARD])
def test_one_reduction_of_all_gradients_is_a_matter_of_bucket_sizes(tmp_path: Path, phase: Phase | None) -> None:
    how = Reduction(phase, calls=1)
    run = job(tmp_path, how, how)
    assert still(run).blocked_ms == 0.0
    assert "DD402" not in rules(run)


def test_a_group_that_forward_waits_for_carries_activations(tmp_path: Path) -> None:
    how = Reduction(Phase.BACKWARD, activations=True)
    run = job(tmp_path, how, how)
    assert still(run).transfer_ms == pytest.approx(2 * CALLS * TRANSFER_MS)
    assert still(run).blocked_ms == 0.0
    assert "DD402" not in rules(run)


@pytest.mark.parametrize("phase", [Phase.EVALUATION, Phase.CHECKPOINT, Phase.LOGGING])
def test_what_others_than_the_training_communicate_is_theirs(tmp_path: Path, phase: Phase) -> None:
    run = job(tmp_path, Reduction(phase), Reduction(phase))
    assert still(run) == StoodStill(0.0, 0.0)
    assert "DD402" not in rules(run)


def test_what_a_script_communicates_after_the_update_reduces_no_gradients(tmp_path: Path) -> None:
    how = Reduction(after_update=True)
    run = job(tmp_path, how, how)
    assert still(run).transfer_ms == pytest.approx(CALLS * TRANSFER_MS)
    assert still(run).blocked_ms == 0.0
    assert "DD402" not in rules(run)


def test_without_the_other_ranks_nothing_is_said(tmp_path: Path) -> None:
    whole = job(tmp_path / "whole", Reduction(), Reduction())
    assert still(whole).blocked_ms > 0
    run = write_run(tmp_path / "half" / "run")
    files = files_of(run, Plan(world=2))
    files.folder.mkdir(parents=True)
    Reducing(files, Plan(world=2)).train(Reduction())
    half = load([str(run)])
    calls = derive(half).get(Collectives)
    assert calls is None or calls.stood_still is None
    assert "DD402" not in rules(half)


def test_on_a_device_the_stream_waits_for_the_tail_of_backward(tmp_path: Path) -> None:
    """Calls begin at 5 and 11 ms and are over at 17 and 29 ms: until the second begins, backward runs on."""
    how = Reduction(Phase.BACKWARD, device=True, asynchronous=True)
    run = job(tmp_path, how, how)
    assert still(run).transfer_ms == pytest.approx(CALLS * TRANSFER_MS)
    assert still(run).blocked_ms == 0.0
    budget = derive(run).get(StepBudget)
    assert budget is not None
    assert budget.mean("comm_transfer_ms") == pytest.approx(CALLS * TRANSFER_MS - HOST_MS)
    assert budget.mean("overlapped_comm_ms") == pytest.approx(HOST_MS)


@pytest.mark.parametrize("phase", [None, Phase.BACKWARD])
def test_on_a_device_the_stream_waits_for_all_of_a_synchronous_call(tmp_path: Path, phase: Phase | None) -> None:
    how = Reduction(phase, device=True)
    run = job(tmp_path, how, how)
    found = still(run)
    assert found.blocked_ms == pytest.approx(found.transfer_ms)
    assert found.transfer_ms == pytest.approx(CALLS * TRANSFER_MS)
    assert rules(run)[0] == "DD402"


def test_beside_an_asynchronous_call_on_a_device_the_stream_computes(tmp_path: Path) -> None:
    """Issued outside backward (a sharded unit's, fetched early): what waits for it is not known."""
    how = Reduction(Phase.FORWARD, device=True, asynchronous=True)
    run = job(tmp_path, how, how)
    assert still(run).blocked_ms == 0.0
    budget = derive(run).get(StepBudget)
    assert budget is not None
    assert budget.mean("comm_transfer_ms") == pytest.approx(0.0)
    assert budget.mean("overlapped_comm_ms") == pytest.approx(CALLS * TRANSFER_MS)


def test_bandwidth_is_known_of_calls_timed_on_a_device_alone(tmp_path: Path) -> None:
    """A host's spans hold its threads' turns at the processors, too."""
    on_device, on_host = (Reduction(device=device) for device in (True, False))
    links = derive(job(tmp_path / "device", on_device, on_device)).get(Links)
    assert links is not None
    assert links.table["busbw_gbps"].to_list() == pytest.approx([SIZE / (TRANSFER_MS * MS)])
    assert links.slow_groups == ()
    assert derive(job(tmp_path / "host", on_host, on_host)).get(Links) is None
