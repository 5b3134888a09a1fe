"""Forward passes of the wrappers that every call of a distributed model goes through: DDP, FSDP1, FSDP2.

A plain module has no such place: hooks for all modules would slow down each of them and make ``torch.compile`` warn,
and hooks on one module are copied and pickled with it. Its forward is inferred (see ``Recorder.begin_backward``).
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.hooks import ddp
from ddiag.capture.hooks.spans import Token, leave
from ddiag.capture.patches import Patches

_root: dict[int, Token] = {}
"""FSDP2: the open forward of a root state, by its identity."""


def install(module: ModuleType, patches: Patches) -> None:
    for name, before in (("DistributedDataParallel", _replica_before), ("FullyShardedDataParallel", _before)):
        owner = vars(module).get(name)
        if owner is not None and owner.__module__ == module.__name__:
            patches.replace(owner, "forward", partial(around, name=f"{name}.forward", before=before, after=leave))
    state = vars(module).get("FSDPState")
    if state is not None and state.__module__ == module.__name__:
        patches.replace(
            state, "_pre_forward", partial(around, name="FSDP2.forward", before=_state_before, after=_nothing)
        )
        patches.replace(
            state, "_post_forward", partial(around, name="FSDP2.forward", before=_state_of, after=_state_after)
        )


def _before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Token | None:
    active = recorder.current
    if active is None:
        return None
    token = active.begin_forward(grad=sys.modules["torch"].is_grad_enabled(), training=args[0].training)
    return None if token is None else (active, token)


def _replica_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
    token, active = _before(args, kwargs), recorder.current
    if active is not None and sys.modules["torch"].is_grad_enabled():
        ddp.forward_begins(active, args[0])
    return token


def _state_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``FSDPState._pre_forward(self, module, args, kwargs)``: the outermost call opens the forward."""
    token = _before((args[1],), kwargs) if len(args) > 1 else None
    if token is not None:
        _root.clear()
        _root[id(args[0])] = token


def _state_of(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> int | None:
    return id(args[0]) if id(args[0]) in _root else None


def _state_after(state: int, result: Any, failed: bool) -> None:
    leave(_root.pop(state), result, failed)


def _nothing(_token: Any, _result: Any, _failed: bool) -> None:
    """The forward goes on after its pre-forward."""
