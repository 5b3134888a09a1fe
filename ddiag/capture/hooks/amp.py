"""``GradScaler``: loss scale, skipped steps, and whether gradients were unscaled before they were clipped.

FSDP1's ``ShardedGradScaler`` inherits ``step`` and has its own of the others.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.late_scalar import LateScalar
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Mark

_scale = LateScalar()
_last_scale = math.nan

StepToken = tuple[recorder.Recorder, int, int, bool]
"""recorder, identity of the optimizer, optimizer steps finished before, whether torch tells us of its steps"""


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch.amp.grad_scaler``, or FSDP1's ``sharded_grad_scaler``."""
    sharded = getattr(module, "ShardedGradScaler", None)
    scaler = sharded or module.GradScaler
    for name, (before, after) in _METHODS.items():
        if sharded is None or name in vars(sharded):
            patches.replace(scaler, name, partial(around, name=f"GradScaler.{name}", before=before, after=after))


def _active(scaler: Any) -> recorder.Recorder | None:
    """The recorder, if the scaler is switched on and this is the training thread."""
    active = recorder.current
    return active if active is not None and scaler.is_enabled() and active.on_training_thread() else None


def _scaled(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    active = _active(args[0])
    if active is not None:
        active.totals.scaled = True


def _unscaled(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    active = _active(args[0])
    if active is not None:
        active.totals.unscaled = True
        active.mark(Mark.UNSCALE)


def _before_step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepToken | None:
    if recorder.current is None and args[0].is_enabled():
        from ddiag.capture.activate import ACTIVATION

        ACTIVATION.joined()
    active = _active(args[0])
    if active is None:
        return None
    optimizer = args[1] if len(args) > 1 else kwargs["optimizer"]
    scale = _scale.offer(args[0]._scale)
    if scale is not None:
        active.totals.loss_scale = scale
    active.begin_optimizer(id(optimizer))
    told = isinstance(optimizer, sys.modules["torch"].optim.Optimizer)
    return active, id(optimizer), active.optimizer_posts, told


def _after_step(token: StepToken, _result: Any, failed: bool) -> None:
    active, optimizer, posts, told = token
    active.end_optimizer(optimizer, skipped=told and active.optimizer_posts == posts, failed=failed)


def _before_update(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[recorder.Recorder, Any] | None:
    active = _active(args[0])
    return None if active is None else (active, args[0])


def _updated(token: tuple[recorder.Recorder, Any], _result: Any, _failed: bool) -> None:
    global _last_scale
    active, scaler = token
    scale = _scale.offer(scaler._scale)
    if scale is not None and scale != _last_scale:
        _last_scale = scale
        active.mark(Mark.LOSS_SCALE, scale)


def _nothing(_token: Any, _result: Any, _failed: bool) -> None:
    """Never called: no token."""


_METHODS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "scale": (_scaled, _nothing),
    "unscale_": (_unscaled, _nothing),
    "step": (_before_step, _after_step),
    "update": (_before_update, _updated),
}
