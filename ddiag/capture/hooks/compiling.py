"""When ``torch.compile`` compiles: a phase of its own, and whether it had compiled that function before.

``_compile`` is where every frame is compiled, on the thread that met it. Backward graphs that are compiled when they
are first needed, and CUDA graphs recorded then, only show in Dynamo's callbacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around, guarded
from ddiag.capture.hooks.spans import Token, leave
from ddiag.capture.patches import Patches
from ddiag.schema.phases import AGAIN, Phase
from ddiag.schema.steps import StepFlag

_COMPILE, _BACKWARD = int(Phase.COMPILE), int(Phase.BACKWARD)


def install(module: ModuleType, patches: Patches) -> None:
    if module.__name__ == "torch._dynamo.convert_frame":
        patches.replace(module, "_compile", lambda original: around(original, "compile", _frame, leave))
    else:
        patches.replace(module.CompilationCallbackHandler, "install_callbacks", _watched)


def _frame(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
    """``_compile(code, …, compile_id=…)``"""
    code = args[0]
    where = f"{code.co_name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
    return _began(where, again=bool(getattr(kwargs.get("compile_id"), "frame_compile_id", 0)))


def _late(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Token | None:
    """``install_callbacks(self, trigger, compile_id)``; the id is the number of a frame / how often it was compiled."""
    frame, _, before = str(args[2]).rpartition("/")
    return _began(f"{args[1].name.lower()} {frame}".strip(), again=before not in ("", "0", "None"))


def _began(what: str, *, again: bool) -> Token | None:
    active = recorder.current
    if active is None or active.in_phase(_COMPILE):
        return None
    if active.current_phase == _BACKWARD:
        active.totals.flags |= StepFlag.COMPILED  # a device's backward pass runs, and compiles, on a thread of its own
    return active, active.enter(_COMPILE, active.names.id(f"{AGAIN if again else ''}{what}"))


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    begin, end = guarded("compile", _late), guarded("compile", leave)

    @functools.wraps(original)
    @contextmanager
    def watched(*args: Any, **kwargs: Any) -> Iterator[None]:
        token = begin(args, kwargs)
        try:
            with original(*args, **kwargs):
                yield
        finally:
            if token is not None:
                end(token, None, False)

    return watched
