"""Optimizer steps: torch's own global hooks, which see every ``torch.optim.Optimizer`` under any framework."""

from __future__ import annotations

import weakref
from functools import partial
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import guarded
from ddiag.capture.hooks.spans import as_phase
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Phase

_known: dict[int, weakref.ref[Any]] = {}
"""Optimizers that have stepped and still exist, by identity."""


def install(module: ModuleType, patches: Patches) -> None:
    before = module.register_optimizer_step_pre_hook(guarded("optimizer", _before))
    after = module.register_optimizer_step_post_hook(guarded("optimizer", _after))
    patches.undo_with(before.remove)
    patches.undo_with(after.remove)
    patches.replace(module.Optimizer, "zero_grad", as_phase(Phase.ZERO_GRAD, "zero_grad"))


def _before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    active = recorder.current
    if active is None:
        from ddiag.capture.activate import ACTIVATION

        ACTIVATION.joined()
        active = recorder.current
    if active is not None:
        if id(optimizer) not in _known:
            _known[id(optimizer)] = weakref.ref(optimizer, partial(_gone, id(optimizer)))
        active.begin_optimizer(id(optimizer))


def _destroyed(identity: int, _reference: Any) -> None:
    _known.pop(identity, None)
    active = recorder.current
    if active is not None:
        active.retire_optimizer(identity)


_gone = guarded("optimizer destroyed", _destroyed)


def _after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    active = recorder.current
    if active is not None:
        active.optimizer_posts += 1
        active.end_optimizer(id(optimizer))
