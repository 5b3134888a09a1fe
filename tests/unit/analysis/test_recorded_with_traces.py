"""Profiler windows taken while a run was recorded complete what the recorder saw."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddiag.analysis import derive
from ddiag.ingest import load
from ddiag.model.run import Run
from ddiag.model.signals import JobFacts, KernelMix, Memory, PythonOverhead, StepBudget
from tests.recordings import healthy, write_run

TRACES = Path(__file__).parents[3] / "fixtures" / "traces" / "healthy"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = write_run(tmp_path_factory.mktemp("run"), *healthy(4, steps=40, save_every=10))
    shutil.copytree(TRACES, folder / "profile" / "steps-8-10")
    return load([str(folder)])


def test_both_are_read_and_kept_apart(run: Run) -> None:
    assert run.recorded
    assert run.traces is not None
    assert {one.kind for one in run.coverage.inputs} == {"recording", "kineto"}
    assert run.table("steps").height == 4 * 40, "steps of the run, not of the window"
    assert run.has("kernels"), "what only the traces have can be queried"


def test_a_device_is_judged_by_the_trace_and_the_run_by_the_recording(run: Run) -> None:
    signals = derive(run)
    budget, memory, python = (signals.get(family) for family in (StepBudget, Memory, PythonOverhead))
    assert budget is not None
    assert budget.on_device
    assert signals.has(KernelMix)
    assert memory is not None
    assert memory.growth_steps == 32
    assert python is not None
    assert python.checkpoints == 4
    facts = signals.get(JobFacts)
    assert facts is not None
    assert facts.ranks == (0, 1, 2, 3)
    assert facts.device_kind == "cuda", "the recorder saw no device; the traces did"


def test_the_recording_alone_is_the_same_as_without_traces(run: Run, tmp_path: Path) -> None:
    alone = derive(load([str(write_run(tmp_path, *healthy(4, steps=40, save_every=10)))]))
    both = derive(run)
    assert alone.get(PythonOverhead) == both.get(PythonOverhead)
