"""``torch.distributed.checkpoint.async_save``: a thread of its own issues collectives until the save's future is done.

Who cannot bear a second thread is told before that thread is started, and asks at the ends of steps whether it is over.
A callback of the future would run in that thread, maybe while the interpreter ends.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ddiag.capture.door import around
from ddiag.capture.patches import Patches

holders: list[Callable[[], bool]] = []
"""Called by the thread that is about to start a save. True: made ready for it, and will ask whether it is over."""
_running: list[Any] = []
"""Futures of the saves that somebody was made ready for."""


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch.distributed.checkpoint.state_dict_saver``."""

    def watched(original: Any) -> Any:
        return around(original, "async_save", _before, _after)

    patches.replace_function(module, "async_save", watched, also=("torch.distributed.checkpoint",))


def running() -> bool:
    """Whether a thread that saves may still issue collectives."""
    if not _running:
        return False
    _running[:] = [future for future in _running if not future.done()]
    return bool(_running)


def _before(_args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    if getattr(kwargs.get("async_checkpointer_type"), "value", "") == "process":
        return None  # its collectives are issued by another process
    ready = [hold() for hold in holders]
    return True if any(ready) else None


def _after(_token: bool, result: Any, failed: bool) -> None:
    # Newer versions of torch return two futures where the state is copied in the background as well.
    future = getattr(result, "upload_completion", result)
    if not failed and hasattr(future, "done"):
        _running.append(future)
