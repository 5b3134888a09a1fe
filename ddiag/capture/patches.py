"""Replacing attributes of torch, and putting every one of them back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """What was replaced, in order."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> bool:
        """``owner.name = make(the old one)``; False when *owner* has none.

        The attribute is kept as it lies in ``owner.__dict__``: a descriptor taken through ``getattr`` would come back
        bound to the wrong thing.
        """
        if not hasattr(owner, name):
            return False
        kept = vars(owner).get(name, _MISSING)
        new = make(getattr(owner, name) if kept is _MISSING or isinstance(kept, (staticmethod, classmethod)) else kept)
        setattr(owner, name, new)
        self._replaced.append((owner, name, kept, new))
        return True

    def replace_function(
        self, module: Any, name: str, make: Callable[[Any], Any], *, also: tuple[str, ...] = ()
    ) -> bool:
        """The same for a function of *module* that the modules *also* may have imported by name already."""
        old = getattr(module, name, None)
        if not self.replace(module, name, make):
            return False
        new = getattr(module, name)
        for other in also:
            alias = sys.modules.get(other)
            if alias is not None and vars(alias).get(name) is old:
                self.replace(alias, name, lambda _: new)
        return True

    def undo_with(self, undo: Callable[[], None]) -> None:
        """Call *undo* on :meth:`restore` (a handle's ``remove``, a list's ``remove``)."""
        self._undo.append(undo)

    def restore(self) -> list[str]:
        """Put everything back, newest first; names of what somebody else has wrapped since, and stays."""
        left = []
        while self._undo:
            self._undo.pop()()
        while self._replaced:
            owner, name, kept, new = self._replaced.pop()
            if vars(owner).get(name) is not new:
                left.append(f"{getattr(owner, '__name__', owner)}.{name}")
            elif kept is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, kept)
        return left
