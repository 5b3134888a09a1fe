"""Optimizer steps: torch's own global hooks, which see every subclass of ``torch.optim.Optimizer`` under any framework."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around, guarded
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Phase

_tokens: list[int] = []
"""Of optimizers inside their step, outermost first."""


def install(module: ModuleType, patches: Patches) -> None:
    before = module.register_optimizer_step_pre_hook(guarded("optimizer.pre", _before))
    after = module.register_optimizer_step_post_hook(guarded("optimizer.post", _after))
    patches.undo_with(before.remove)
    patches.undo_with(after.remove)
    patches.replace(
        module.Optimizer, "zero_grad", lambda original: around(original, "zero_grad", _zero_grad, _zero_grad_done)
    )


def _before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    active = recorder.current
    if active is None:
        from ddiag.capture.activate import ACTIVATION

        ACTIVATION.joined()
        active = recorder.current
    if active is not None:
        _tokens.append(active.begin_optimizer(id(optimizer)))


def _after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    active = recorder.current
    if active is not None and _tokens:
        active.optimizer_posts += 1
        active.end_optimizer(_tokens.pop())


def _zero_grad(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[recorder.Recorder, int] | None:
    active = recorder.current
    return None if active is None else (active, active.enter(Phase.ZERO_GRAD))


def _zero_grad_done(token: tuple[recorder.Recorder, int], _result: Any, failed: bool) -> None:  # noqa: FBT001
    token[0].leave(token[1], failed)
