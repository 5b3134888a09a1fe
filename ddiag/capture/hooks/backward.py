"""Backward passes: ``torch.autograd.backward``, through which ``Tensor.backward`` goes as well."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.patches import Patches


def install(module: ModuleType, patches: Patches) -> None:
    patches.replace(module, "backward", lambda original: around(original, "backward", _before, _after))


def _before(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[recorder.Recorder, int] | None:
    active = recorder.current
    token = None if active is None else active.begin_backward()
    return None if active is None or token is None else (active, token)


def _after(token: tuple[recorder.Recorder, int], _result: Any, failed: bool) -> None:
    token[0].end_backward(token[1], failed=failed)
