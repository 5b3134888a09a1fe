"""``ddiag.record()``: from within a script, with or without a supervisor, and never at the script's expense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ddiag  # noqa: E402
from ddiag.capture import recorder  # noqa: E402
from ddiag.capture.activate import ACTIVATION  # noqa: E402
from ddiag.schema.folder import read_manifest  # noqa: E402
from tests.unit.capture.reading import phases, steps_of, the_process  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    ACTIVATION.stop()
    assert recorder.current is None


def _train(steps: int) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def test_a_block_is_recorded_and_what_follows_is_not(tmp_path: Path) -> None:
    backward = torch.autograd.backward
    with ddiag.record(tmp_path, name="block") as recording:
        run = recording.run
        _train(3)
    assert torch.autograd.backward is backward
    _train(2)
    assert run is not None
    assert run.parent == tmp_path
    assert len(steps_of(the_process(run))) == 3
    manifest = read_manifest(run)
    assert (manifest.launcher, manifest.name) == ("api", "block")
    assert manifest.end_wall_ns is not None
    assert manifest.end_wall_ns > manifest.start_wall_ns


def test_a_function_is_recorded_while_it_runs(tmp_path: Path) -> None:
    @ddiag.record(tmp_path, name="function")
    def main(steps: int) -> str:
        _train(steps)
        return "result"

    assert main(2) == "result"
    assert recorder.current is None
    (run,) = tmp_path.iterdir()
    assert len(steps_of(the_process(run))) == 2


def test_under_a_supervisor_it_changes_nothing(tmp_path: Path) -> None:
    supervised = tmp_path / "supervised"
    supervised.mkdir()
    ACTIVATION.start(supervised)
    with ddiag.record(tmp_path / "own") as recording:
        assert recording.run == supervised
        _train(2)
    assert recorder.current is not None
    assert not (tmp_path / "own").exists()


def test_phases_and_steps_of_loops_torch_does_not_know(tmp_path: Path) -> None:
    with ddiag.record(tmp_path) as recording:
        run = recording.run
        for _ in range(2):
            recording.step()
            with recording.phase("input"):
                pass
        recording.step()
    assert run is not None
    files = the_process(run)
    assert phases(files) == ["INPUT", "INPUT"]
    assert len(steps_of(files)) == 3


def test_an_unknown_phase_is_the_callers_mistake(tmp_path: Path) -> None:
    with ddiag.record(tmp_path) as recording, pytest.raises(ValueError, match="no phase 'inputs'; there are input"):
        recording.phase("inputs")


@pytest.mark.parametrize("use", ["call", "block", "function"])
def test_where_nothing_can_be_written_the_script_runs(
    tmp_path: Path, use: str, capfd: pytest.CaptureFixture[str]
) -> None:
    blocked: Any = tmp_path / "file"
    blocked.write_text("in the way")
    if use == "call":
        ddiag.record(blocked)
        _train(2)
    elif use == "block":
        with ddiag.record(blocked) as recording:
            recording.step()
            with recording.phase("forward"):
                _train(2)
        assert recording.run is None
    else:
        ddiag.record(blocked)(_train)(2)
    assert capfd.readouterr() == ("", "")


def test_an_exception_of_the_block_passes(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="theirs"), ddiag.record(tmp_path):
        raise KeyError("theirs")


def test_switched_off_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDIAG_DISABLE", "1")
    with ddiag.record(tmp_path) as recording:
        _train(1)
    assert recording.run is None
    assert list(tmp_path.iterdir()) == []
