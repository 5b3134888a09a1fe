"""Calls us when a module has been imported, without importing it: a finder at the front of ``sys.meta_path``."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ddiag.capture.door import guarded


class _Loader(importlib.abc.Loader):
    """Another loader's work, then ours; gone from the module again once it is loaded."""

    def __init__(self, inner: Any, loaded: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._loaded(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Imports(importlib.abc.MetaPathFinder):
    """Who wants to know of which module."""

    def __init__(self) -> None:
        self._wanted: dict[str, list[Callable[[ModuleType], None]]] = {}

    def when_imported(self, name: str, call: Callable[[ModuleType], None]) -> None:
        """*call* with the module as soon as it is there: now, or right after it is first imported."""
        call = guarded(f"import {name}", call)
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            call(module)
            return
        self._wanted.setdefault(name, []).append(call)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        self._wanted.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._wanted:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._loaded)
                return spec
        return None

    def _loaded(self, module: ModuleType) -> None:
        for call in self._wanted.pop(module.__name__, []):
            call(module)
