"""What a user asks for beyond recording: profiler windows and NVTX ranges."""

from __future__ import annotations

import gzip
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddiag.capture.door import DOOR
from ddiag.capture.hooks import nvtx, requested
from ddiag.capture.hooks.nvtx import Ranges
from ddiag.capture.hooks.profile_window import ProfileWindow
from ddiag.capture.recorder import Recorder
from ddiag.schema.folder import Manifest, write_manifest
from ddiag.schema.phases import Phase
from ddiag.schema.profile import MAX_STEPS, ProfileRequest, read_request, request_file, trace_file, write_request
from ddiag.schema.steps import StepFlag

torch = pytest.importorskip("torch")


def _facts(active: Recorder, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in active.files.facts.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def _train(active: Recorder, steps: int) -> list[int]:
    """So many steps; the flags of each."""
    flags: list[int] = []
    active.at_step_end("flags", lambda totals: flags.append(int(totals.flags)))
    for _ in range(steps):
        torch.ones(4, requires_grad=True).sum().backward()
        active.engine_step()
    return flags


def _packed(path: Path) -> dict[str, Any]:
    """The trace, once the thread that packs it is done."""
    for thread in threading.enumerate():
        if thread.name == "ddiag-pack":
            thread.join(30)
    with gzip.open(path, "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


@pytest.fixture
def run(active: Recorder) -> Path:
    """The run folder of ``active``."""
    return active.files.folder.parents[1]


def test_steps_asked_for_become_a_trace_with_their_numbers(active: Recorder, run: Path) -> None:
    request = ProfileRequest(3, 5)
    write_request(run, request)
    requested.activated(active)
    flags = _train(active, 9)
    trace = _packed(trace_file(run, rank=0, request=request))
    marks = [event["name"] for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep")]
    assert sorted(marks) == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
    assert any(event.get("name") == "aten::sum" for event in trace["traceEvents"])
    assert [number for number, value in enumerate(flags) if value & StepFlag.PROFILED] == [3, 4, 5, 6]
    assert [path.name for path in trace_file(run, rank=0, request=request).parent.iterdir()] == ["r00000.json.gz"]
    assert DOOR.errors == 0


def test_a_window_in_which_the_recording_ends_is_closed_and_written(active: Recorder, run: Path) -> None:
    request = ProfileRequest(3, 9)
    write_request(run, request)
    requested.activated(active)
    _train(active, 6)
    active.close()
    assert not torch.autograd._profiler_enabled()
    trace = _packed(trace_file(run, rank=0, request=request))
    marks = {event["name"] for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep")}
    assert {"ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"} <= marks
    assert DOOR.errors == 0


def test_a_window_without_a_whole_step_is_left_out(active: Recorder, run: Path) -> None:
    write_request(run, ProfileRequest(3, 9))
    requested.activated(active)
    _train(active, 3)
    active.close()
    assert not torch.autograd._profiler_enabled()
    assert _facts(active, "profile_left_out")[0]["why"] == "the recording ended in its first step"
    assert not (run / "profile" / "steps-3-9").exists()


def test_a_window_from_the_very_first_step(active: Recorder, run: Path) -> None:
    request = ProfileRequest(0, 0)
    write_request(run, request)
    requested.activated(active)
    _train(active, 3)
    assert _packed(trace_file(run, rank=0, request=request))["traceEvents"]


def test_a_request_that_comes_later_is_seen_and_one_that_comes_too_late_is_left_out(
    active: Recorder, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddiag.capture.hooks.profile_window._LOOK_EVERY_NS", 0)
    requested.activated(active)
    _train(active, 4)
    write_request(run, ProfileRequest(2, 3))
    _train(active, 1)
    assert "had passed" in _facts(active, "profile_left_out")[0]["why"]
    later = ProfileRequest(7, 7)
    write_request(run, later)
    _train(active, 5)
    assert _packed(trace_file(run, rank=0, request=later))["traceEvents"]


def test_the_users_profiler_goes_first(active: Recorder, run: Path) -> None:
    """It works as if ours were not there, and ours is given up."""
    write_request(run, ProfileRequest(1, 5))
    requested.activated(active)
    starters = (torch.autograd.profiler._prepare_profiler, torch.autograd.profiler._enable_profiler)
    _train(active, 2)
    assert torch.autograd.profiler._prepare_profiler is not starters[0]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        _train(active, 6)
    assert "aten::sum" in [event.key for event in theirs.key_averages()]
    assert "user's own profiler" in _facts(active, "profile_left_out")[0]["why"]
    assert (torch.autograd.profiler._prepare_profiler, torch.autograd.profiler._enable_profiler) == starters
    assert not list((run / "profile").glob("*/*"))
    assert DOOR.errors == 0


def test_a_window_does_not_begin_while_the_user_profiles(active: Recorder, run: Path) -> None:
    write_request(run, ProfileRequest(1, 5))
    requested.activated(active)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        _train(active, 4)
    assert "aten::sum" in [event.key for event in theirs.key_averages()]
    assert "another profiler" in _facts(active, "profile_left_out")[0]["why"]


def test_without_a_request_a_step_costs_next_to_nothing(active: Recorder, run: Path) -> None:
    window = ProfileWindow(active, run)
    window.look()
    assert window._request is None
    assert window._profiler is None
    window.step_ended(active.totals)
    assert active.totals.flags == 0


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"first": 5, "last": 3}', '{"first": -1, "last": 3}', '{"first": 0, "last": 50}'],
)
def test_a_request_that_makes_no_sense_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(text)
    assert read_request(path) is None
    assert MAX_STEPS == 50


def test_a_request_reads_back_as_written(tmp_path: Path) -> None:
    request = ProfileRequest(3, 4, "slow")
    write_request(tmp_path, request)
    assert read_request(request_file(tmp_path)) == request


class FakeRanges:
    """A stack of open ranges, as Nsight would show them."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: list[str] = []
        self.steps: list[str] = []

    def ranges(self) -> Ranges:
        return Ranges(self._push, self._pop, self._start, self.steps.remove, "fake")

    def _push(self, name: str) -> None:
        self.open.append(name)
        self.seen.append("/".join(self.open))

    def _pop(self) -> None:
        self.open.pop()

    def _start(self, name: str) -> str:
        self.steps.append(name)
        return name


def test_phases_nest_as_ranges_and_steps_are_ranges_of_their_own(active: Recorder) -> None:
    fake = FakeRanges()
    nvtx.mark_phases(active, fake.ranges())
    assert fake.steps == ["step 0"]
    outer = active.enter(Phase.BACKWARD)
    inner = active.enter(Phase.OPTIMIZER)
    active.leave(inner)
    active.leave(outer)
    assert fake.seen == ["backward", "backward/optimizer"]
    assert fake.open == []
    active.engine_step()
    assert fake.steps == ["step 1"]


def test_a_phase_left_by_an_exception_closes_its_range(active: Recorder) -> None:
    fake = FakeRanges()
    nvtx.mark_phases(active, fake.ranges())
    outer = active.enter(Phase.FORWARD)
    active.enter(Phase.LOGGING)
    active.leave(outer, failed=True)
    assert fake.open == []
    assert active.current_phase == Phase.NONE


def test_ranges_that_fail_never_reach_the_job(active: Recorder) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("NVTX functions not installed")

    nvtx.mark_phases(active, Ranges(fail, fail, lambda name: name, fail, "broken"))
    for _ in range(10):
        active.leave(active.enter(Phase.FORWARD))
        active.engine_step()
    assert active.current_phase == Phase.NONE
    assert DOOR.errors > 0


def test_ranges_are_asked_for_in_the_manifest(active: Recorder, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[Recorder] = []
    monkeypatch.setattr(nvtx, "mark_phases", marked.append)
    manifest = Manifest("1", "x", ("python",), "python", 1, "a", 1, options={"nvtx": False})
    write_manifest(run, manifest)
    requested.activated(active)
    assert marked == []
    write_manifest(run, replace(manifest, options={"nvtx": True}))
    requested.activated(active)
    assert marked == [active]
