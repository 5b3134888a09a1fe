"""Gradient clipping, and the norm it returns (never waited for: see :mod:`ddiag.capture.late_scalar`)."""

from __future__ import annotations

import sys
from functools import partial
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
_PARTS = {"_get_total_norm": "get_total_norm", "_clip_grads_with_norm_": "clip_grads_with_norm_"}
"""Since torch 2.6 the two halves of ``clip_grad_norm_`` can be called on their own, by the names ``nn.utils`` gives
them."""
Computed = tuple[recorder.Recorder, int, Any]
"""recorder, phase, the norm if it is known to be one of gradients"""


def install(module: ModuleType, patches: Patches) -> None:
    if module.__name__ != "torch.nn.utils.clip_grad":
        patches.replace(module.FullyShardedDataParallel, "clip_grad_norm_", _observe)
        return
    patches.replace_function(module, "clip_grad_norm_", _observe, also=("torch.nn.utils",))
    patches.replace_function(module, "clip_grad_value_", _observe, also=("torch.nn.utils",))
    for name, make in (("_get_total_norm", _observe_norm), ("_clip_grads_with_norm_", _observe_scaling)):
        old, offered = getattr(module, name, None), sys.modules.get("torch.nn.utils")
        if patches.replace(module, name, make) and getattr(offered, _PARTS[name], None) is old:
            patches.replace(offered, _PARTS[name], partial(_renewed, getattr(module, name)))


def _renewed(new: Any, _old: Any) -> Any:
    return new


def _observe(original: Any) -> Any:
    return around(original, "clip", _before, _after)


def _observe_norm(original: Any) -> Any:
    return around(original, "total norm", _before_norm, _after_norm)


def _observe_scaling(original: Any) -> Any:
    return around(original, "clip with norm", _before_scaling, _after_scaling)


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
    token[0].leave(token[1], failed)
    _keep(token[0], result)


def _before_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Computed | None:
    """``get_total_norm(tensors)``: of gradients, unless they are seen to be parameters, or can be seen but once."""
    active = recorder.current
    if active is None or active.in_phase(Phase.CLIP):
        return None
    given = args[0] if args else kwargs.get("tensors")
    first = given[0] if isinstance(given, (list, tuple)) and given else given
    return active, active.enter(Phase.CLIP), getattr(first, "requires_grad", True) is False


def _after_norm(token: Computed, result: Any, failed: bool) -> None:
    active, phase, of_gradients = token
    active.leave(phase, failed)
    if of_gradients:
        _keep(active, result)


def _before_scaling(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Computed | None:
    """``clip_grads_with_norm_(parameters, max_norm, total_norm)``"""
    token = _before(args, kwargs)
    return None if token is None else (*token, args[2] if len(args) > 2 else kwargs.get("total_norm"))


def _after_scaling(token: Computed, _result: Any, failed: bool) -> None:
    active, phase, norm = token
    active.leave(phase, failed)
    _keep(active, norm)


def _keep(active: recorder.Recorder, norm: Any) -> None:
    value = None if norm is None else _norm.offer(norm)
    if value is not None and active.on_training_thread():
        active.totals.grad_norm = value
