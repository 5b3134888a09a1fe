"""``Module.eval()``: what follows may be evaluation (``Recorder.asks_for_data`` decides)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.patches import Patches


def install(module: ModuleType, patches: Patches) -> None:
    patches.replace(module.Module, "eval", lambda original: around(original, "Module.eval", _before, _nothing))


def _before(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    active = recorder.current
    if active is not None and active.on_training_thread():
        active.eval_called = True


def _nothing(_token: Any, _result: Any, _failed: bool) -> None:
    """Never called: no token."""
