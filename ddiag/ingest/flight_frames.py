"""Which frame of a call's stack is the user's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_TORCH = re.compile(
    r"(?:^|[/\\])torch[/\\](?:distributed|nn|autograd|utils|optim|cuda|profiler|fx|jit|_\w+)(?:[/\\.]|$)"
)
_INTERNAL = re.compile(
    r"(?:^|[/\\])(?:site-packages|dist-packages)[/\\]|(?:^|[/\\])lib[/\\]python\d|^<(?!ipython|stdin|string)"
    r"|\.(?:cpp|cc|cxx|h|hpp|cu|so)(?:\.|$)|^(?:\?\?)?$"
)
"""Installed packages, the standard library, frozen modules, native code."""


class Frames:
    """Chooses one frame of each stack; stacks share their frames, so each is judged once."""

    def __init__(self) -> None:
        self._judged: dict[Any, tuple[int, str]] = {}

    def of_user(self, frames: Any) -> str | None:
        """``function (file:line)``: innermost frame of the user's code; else of a package other than torch, else any.

        *frames* are ``{name, filename, line}``, innermost first; None when there are none.
        """
        best: tuple[int, str] | None = None
        for frame in frames if isinstance(frames, (list, tuple)) else ():
            judged = self._judge(frame)
            if judged[0] == 0:
                return judged[1]
            if judged[1] and (best is None or judged[0] < best[0]):
                best = judged
        return None if best is None else best[1]

    def _judge(self, frame: Any) -> tuple[int, str]:
        try:
            key = (frame["filename"], frame["line"], frame["name"])
            judged = self._judged.get(key)
        except (KeyError, TypeError):
            return 3, ""
        if judged is None:
            judged = self._judged[key] = (_distance(str(key[0])), f"{key[2]} ({key[0]}:{key[1]})")
        return judged


def _distance(path: str) -> int:
    """0 the user's, 1 a package's, 2 torch's."""
    if _TORCH.search(path):
        return 2
    return 1 if _INTERNAL.search(path) else 0


def user_frames(stacks: Sequence[Any]) -> list[str | None]:
    """The user's frame of each stack."""
    choose = Frames().of_user
    return [choose(frames) for frames in stacks]
