"""``init_process_group``: the surest sign that a process trains."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddiag.capture.door import around
from ddiag.capture.patches import Patches

_ALIASES = ("torch.distributed", "torch.distributed.device_mesh")
"""Modules that import it by name."""


def install(module: ModuleType, patches: Patches) -> None:
    def watched(original: Any) -> Any:
        return around(original, "init_process_group", _before, _after)

    patches.replace_function(module, "init_process_group", watched, also=_ALIASES)


def _before(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
    return True


def _after(_token: Any, _result: Any, failed: bool) -> None:
    from ddiag.capture.activate import ACTIVATION

    if not failed:
        ACTIVATION.joined()
