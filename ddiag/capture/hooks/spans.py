"""A call that is a phase: what most hooks need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around

Token = tuple[recorder.Recorder, int]


def as_phase(phase: int, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes of a function one that is *phase* while it runs; inside the same phase it adds no mark of its own."""

    def before(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Token | None:
        active = recorder.current
        if active is None or active.in_phase(phase):
            return None
        return active, active.enter(phase)

    return lambda original: around(original, name, before, leave)


def leave(token: Token, _result: Any, failed: bool) -> None:
    token[0].leave(token[1], failed)
