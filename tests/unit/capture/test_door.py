"""The one door: nothing of ours reaches the job, everything is counted, and what keeps failing is switched off."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddiag.capture import door
from ddiag.capture.door import DOOR, MAX_FAILURES, MAX_REPORTS, around, guarded, quietly


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(door, "DOOR", DOOR)
    DOOR.hooks.clear()
    DOOR.forget()
    yield
    DOOR.hooks.clear()
    DOOR.forget()


def _add(one: int, /, two: int = 2) -> int:
    """Adds."""
    return one + two


def _bad(*_args: Any) -> Any:
    raise ZeroDivisionError("ours")


def test_the_original_runs_between_before_and_after() -> None:
    seen: list[Any] = []
    add = around(_add, "add", lambda args, kwargs: (args, kwargs), lambda *told: seen.append(told))
    assert add(1, two=5) == 6
    assert seen == [(((1,), {"two": 5}), 6, False)]


def test_a_stand_in_looks_like_what_it_stands_in_for() -> None:
    add = around(_add, "add", _bad, _bad)
    assert inspect.signature(add) == inspect.signature(_add)
    assert (add.__name__, add.__doc__) == ("_add", "Adds.")


@pytest.mark.parametrize(("before", "after"), [(_bad, lambda *_: None), (lambda *_: 1, _bad)])
def test_our_failure_does_not_reach_the_caller(before: Any, after: Any) -> None:
    add = around(_add, "add", before, after)
    assert add(1) == 3
    assert DOOR.errors == 1


def test_the_callers_own_exception_passes_untouched_and_is_told() -> None:
    told: list[bool] = []

    def fails() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        around(fails, "fails", lambda *_: 1, lambda _token, _result, failed: told.append(failed))()
    with pytest.raises(KeyError, match="theirs") as caught:
        around(fails, "fails2", lambda *_: 1, _bad)()
    assert caught.value.__context__ is None
    assert told == [True]
    assert DOOR.errors == 1


def test_an_interrupt_is_not_ours_to_catch() -> None:
    def interrupted(*_args: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        around(_add, "add", interrupted, _bad)(1)
    assert DOOR.errors == 0


def test_without_a_token_after_is_left_out() -> None:
    assert around(_add, "add", lambda *_: None, _bad)(1) == 3
    assert DOOR.errors == 0


def test_a_hook_that_keeps_failing_is_switched_off_and_others_stay() -> None:
    calls: list[int] = []

    def counted(*_args: Any) -> None:
        calls.append(1)
        raise ValueError

    add, callback = around(_add, "add", counted, _bad), guarded("other", lambda: "alive")
    for _ in range(MAX_FAILURES + 10):
        assert add(1) == 3
    assert len(calls) == MAX_FAILURES
    assert callback() == "alive"


def test_a_guarded_callback_gives_none_when_it_fails() -> None:
    assert guarded("bad", _bad)() is None
    assert DOOR.errors == 1


def test_failures_are_reported_into_the_run_folder_and_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with quietly("too early"):
        raise OSError("first")
    DOOR.report_to(tmp_path / "errors.jsonl", rank=3)
    guarded("bad", _bad)()
    first, second = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert (first["where"], first["error"]) == ("too early", "OSError('first')")
    assert (second["where"], second["rank"], second["off"]) == ("bad", 3, False)
    assert "_bad" in second["trace"]
    assert capfd.readouterr() == ("", "")


def test_debugging_shows_them_on_stderr(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DDIAG_DEBUG", "1")
    guarded("bad", _bad)()
    assert "ZeroDivisionError: ours" in capfd.readouterr().err


def test_only_the_first_are_reported_but_all_are_counted(tmp_path: Path) -> None:
    DOOR.report_to(tmp_path / "errors.jsonl", rank=0)
    for k in range(MAX_REPORTS + 20):
        guarded(f"bad{k}", _bad)()
    assert DOOR.errors == MAX_REPORTS + 20
    assert len((tmp_path / "errors.jsonl").read_text().splitlines()) == MAX_REPORTS


def test_a_report_that_cannot_be_written_is_no_error_either(tmp_path: Path) -> None:
    DOOR.report_to(tmp_path / "no" / "such" / "folder", rank=0)
    assert guarded("bad", _bad)() is None
    assert DOOR.errors == 1


def test_while_the_compiler_traces_we_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "compiling", lambda: True)
    assert around(_add, "add", _bad, _bad)(1) == 3
    assert guarded("bad", _bad)() is None
    assert DOOR.errors == 0
