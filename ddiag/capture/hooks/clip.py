"""Gradient clipping, and the norm it returns (never waited for: see :mod:`ddiag.capture.late_scalar`)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.hooks.spans import Token
from ddiag.capture.late_scalar import LateScalar
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Mark, Phase
from ddiag.schema.steps import StepFlag

_norm = LateScalar()


def install(module: ModuleType, patches: Patches) -> None:
    if module.__name__ == "torch.nn.utils.clip_grad":
        patches.replace_function(module, "clip_grad_norm_", _observe, also=("torch.nn.utils",))
        patches.replace_function(module, "clip_grad_value_", _observe, also=("torch.nn.utils",))
    else:
        patches.replace(module.FullyShardedDataParallel, "clip_grad_norm_", _observe)


def _observe(original: Any) -> Any:
    return around(original, "clip", _before, _after)


def _before(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Token | None:
    active = recorder.current
    if active is None or active.in_phase(Phase.CLIP):
        return None
    totals = active.totals
    if totals.scaled and not totals.unscaled and active.on_training_thread():
        totals.flags |= StepFlag.CLIP_BEFORE_UNSCALE
        active.mark(Mark.CLIP_BEFORE_UNSCALE)
    return active, active.enter(Phase.CLIP)


def _after(token: Token, result: Any, failed: bool) -> None:
    active = token[0]
    active.leave(token[1], failed)
    norm = None if result is None else _norm.offer(result)
    if norm is not None and active.on_training_thread():
        active.totals.grad_norm = norm
