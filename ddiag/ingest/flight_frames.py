"""Which frame of a call's stack is the user's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_TORCH = re.compile(
    r"(?:^|[/\\])torch[/\\](?:distributed|nn|autograd|utils|optim|cuda|profiler|fx|jit|_\w+)(?:[/\\.]|$)"
)
_INTERNAL = re.compile(
    r"(?:^|[/\\])(?:site-packages|dist-packages)[/\\]|(?:^|[/\\])lib[/\\]python\d|^<(?!ipython|stdin|string)"
    r"|\.(?:cpp|cc|cxx|h|hpp|cu|so)(?:\.|$)|^(?:\?\?)?$"
)
"""Installed packages, the standard library, frozen modules, native code."""


def user_frames(stacks: Sequence[Any]) -> list[str | None]:
    """The user's frame of each stack; stacks share their frames, so each frame is judged once.

    ``function (file:line)``: innermost frame of the user's code; else of a package other than torch, else any. Frames
    are ``{name, filename, line}``, innermost first; None for a stack without any.
    """
    keys = [tuple(map(id, frames)) if isinstance(frames, (list, tuple)) else () for frames in stacks]
    judged: dict[int, tuple[int, str]] = {}
    chosen = {key: _user_frame(frames, judged) for key, frames in dict(zip(keys, stacks, strict=True)).items() if key}
    return [chosen.get(key) for key in keys]


def _user_frame(frames: Iterable[Any], judged: dict[int, tuple[int, str]]) -> str | None:
    best = (3, "")
    for frame in frames:
        found = judged.get(id(frame))
        if found is None:
            found = judged[id(frame)] = _judge(frame)
        if found[0] < best[0]:
            best = found
        if not found[0]:
            break
    return best[1] or None


def _judge(frame: Any) -> tuple[int, str]:
    """How far the frame is from the user's code (0 it is, 1 a package's, 2 torch's, 3 unreadable), and its words."""
    if not isinstance(frame, dict) or not {"filename", "name"} <= frame.keys():
        return 3, ""
    path = str(frame["filename"])
    line = frame.get("line", "?")
    far = 2 if _TORCH.search(path) else 1 if _INTERNAL.search(path) else 0
    return far, f"{frame['name']} ({path}:{line})"
