"""Hearing of an import without importing anything, and without leaving a trace in the module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ddiag.capture.imports import Imports
from ddiag.capture.patches import Patches


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imports]:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ddiag_watched.py").write_text("VALUE = 1\n")
    (tmp_path / "ddiag_failing.py").write_text("raise ImportError('theirs')\n")
    watching = Imports()
    yield watching
    watching.remove()
    for name in ("ddiag_watched", "ddiag_failing"):
        sys.modules.pop(name, None)


def test_a_module_is_told_once_after_it_has_run(imports: Imports) -> None:
    told: list[int] = []
    imports.when_imported("ddiag_watched", lambda module: told.append(module.VALUE))
    assert told == []
    module = importlib.import_module("ddiag_watched")
    importlib.reload(module)
    assert told == [1]


def test_several_may_watch_one_module(imports: Imports) -> None:
    told: list[str] = []
    for name in "ab":
        imports.when_imported("ddiag_watched", lambda _module, name=name: told.append(name))
    importlib.import_module("ddiag_watched")
    assert told == ["a", "b"]


def test_a_module_that_is_already_there_is_told_at_once(imports: Imports) -> None:
    told: list[ModuleType] = []
    imports.when_imported("json", told.append)
    assert told == [sys.modules["json"]]
    assert imports not in sys.meta_path


def test_the_module_keeps_its_own_loader(imports: Imports) -> None:
    imports.when_imported("ddiag_watched", lambda _module: None)
    module = importlib.import_module("ddiag_watched")
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_asking_whether_it_exists_imports_nothing(imports: Imports) -> None:
    told: list[ModuleType] = []
    imports.when_imported("ddiag_watched", told.append)
    spec = importlib.util.find_spec("ddiag_watched")
    assert spec is not None
    assert spec.loader is not None
    assert spec.loader.get_filename("ddiag_watched").endswith("ddiag_watched.py")  # type: ignore[attr-defined]
    assert told == []


def test_an_import_that_fails_fails_as_always(imports: Imports) -> None:
    imports.when_imported("ddiag_failing", lambda _module: None)
    with pytest.raises(ImportError, match="theirs"):
        importlib.import_module("ddiag_failing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ddiag_absent")


def test_our_failure_does_not_fail_the_import(imports: Imports) -> None:
    def bad(_module: ModuleType) -> None:
        raise ValueError

    imports.when_imported("ddiag_watched", bad)
    assert importlib.import_module("ddiag_watched").VALUE == 1


class _Owner:
    def method(self) -> str:
        return "method"

    @staticmethod
    def static() -> str:
        return "static"


class _Child(_Owner):
    pass


def test_what_was_replaced_comes_back_exactly() -> None:
    before = dict(vars(_Owner)), dict(vars(_Child))
    patches = Patches()
    patches.replace(_Owner, "method", lambda old: lambda self: old(self) + "!")
    patches.replace(_Owner, "static", lambda old: staticmethod(lambda: old() + "!"))
    patches.replace(_Child, "method", lambda old: lambda self: old(self) + "?")
    assert (_Owner().method(), _Owner.static(), _Child().method()) == ("method!", "static!", "method!?")
    assert patches.restore() == []
    assert (dict(vars(_Owner)), dict(vars(_Child))) == before


def test_what_somebody_wrapped_since_is_left_and_named() -> None:
    patches = Patches()
    patches.replace(_Owner, "method", lambda old: lambda self: old(self) + "!")
    ours = _Owner.method
    try:
        _Owner.method = lambda self: "theirs"  # type: ignore[method-assign]
        assert patches.restore() == ["_Owner.method"]
        assert _Owner().method() == "theirs"
    finally:
        _Owner.method = _original  # type: ignore[method-assign]
    assert ours is not _original


_original = _Owner.method


def test_what_is_not_there_is_not_replaced() -> None:
    assert not Patches().replace(_Owner, "absent", lambda old: old)
