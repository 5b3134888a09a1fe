"""DeepSpeed's swaps to NVMe: how many bytes, and how long the training stood still for them.

Every transfer is asked for through one of two functions of DeepSpeed and awaited by ``wait`` of the handle that it was
asked of. A record with bytes is the asking, one without is the waiting: a transfer that runs beside the training takes
longer than both together. Bytes are those of the buffers, which are padded to whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Copy, Kind

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_COPY = int(Kind.COPY)
_PACKAGE = "deepspeed.runtime.swap_tensor"
_IMPORTERS = tuple(
    f"{_PACKAGE}.{name}"
    for name in (
        "async_swapper",
        "optimizer_utils",
        "partitioned_optimizer_swapper",
        "partitioned_param_swapper",
        "pipelined_optimizer_swapper",
    )
)
"""They take the two functions by name."""
_ELSE = "zero/swap"


class Asked(NamedTuple):
    """Of a handle, and not awaited yet."""

    op: int
    label: str


class Span(NamedTuple):
    active: Recorder
    token: int


_asked: dict[int, Asked] = {}
"""By the handle's id."""
_swapping: list[str] = []
"""What is being swapped, outermost first."""
_handles: set[type] = set()
"""Whose ``wait`` is observed: DeepSpeed compiles them, so none is there before the first transfer."""
_missing: list[str] = []


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is one of ``_NAMED`` or the one with the two functions."""
    if module.__name__ == f"{_PACKAGE}.utils":
        for name, copy in (("swap_in_tensors", Copy.SWAP_IN), ("swap_out_tensors", Copy.SWAP_OUT)):
            make = partial(around, name=f"zero.{name}", before=_asking(int(copy), patches), after=_ended)
            if not patches.replace_function(module, name, make, also=_IMPORTERS):
                _missing.append(name)
        patches.undo_with(_forget)
    for owner, methods in _NAMED.get(module.__name__, {}).items():
        for method, label in methods.items():
            make = partial(around, name=f"zero.{method}", before=_named(label), after=_left)
            if not patches.replace(getattr(module, owner, None), method, make):
                _missing.append(f"{owner}.{method}")


def activated(active: Recorder) -> None:
    if _missing:
        active.facts.write("hook_missing", hook="zero_swaps", names=_missing)


def _forget() -> None:
    _handles.clear()
    _asked.clear()


def _asking(op: int, patches: Patches) -> Before:
    """Hook before ``swap_in_tensors(handle, buffers, paths)``."""

    def before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Span | None:
        active, (handle, buffers, _paths) = recorder.current, args
        if active is None or not buffers:
            return None
        if type(handle) not in _handles:
            _handles.add(type(handle))
            patches.replace(type(handle), "wait", partial(around, name="zero.wait", before=_awaiting, after=_ended))
        label = _swapping[-1] if _swapping else _ELSE
        _asked.setdefault(id(handle), Asked(op, label))
        return _begin(active, op, label, sum(int(one.nbytes) for one in buffers))

    return before


def _awaiting(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Span | None:
    asked, active = _asked.pop(id(args[0]), None), recorder.current
    return None if asked is None or active is None else _begin(active, asked.op, asked.label, 0)


def _begin(active: Recorder, op: int, label: str, size: int) -> Span:
    return Span(active, active.begin_span(_COPY, op, active.names.id(label), -1, size))


def _ended(span: Span, _result: Any, failed: bool) -> None:
    span.active.complete(span.token, not failed)


def _named(label: str) -> Before:
    """Hook before a method that swaps; its first argument, where it is a number, completes the name."""

    def before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
        _swapping.append(label.format(args[1] if len(args) > 1 else ""))
        return True

    return before


def _left(_token: bool, _result: Any, _failed: bool) -> None:
    _swapping.pop()


_STATES, _GRADIENT, _PARAMETERS = "zero/subgroup{}", "zero/gradient", "zero/parameters"
_NAMED: dict[str, dict[str, dict[str, str]]] = {
    "deepspeed.runtime.zero.stage3": {
        "DeepSpeedZeroOptimizer_Stage3": {
            "_optimizer_states_and_gradient_swap_in": _STATES,
            "_optimizer_states_and_gradient_swap_out": _STATES,
        }
    },
    f"{_PACKAGE}.optimizer_utils": {
        "OptimizerSwapper": {"_swap_out_gradients": _GRADIENT, "_flush_gradient_swapper": _GRADIENT}
    },
    f"{_PACKAGE}.partitioned_param_swapper": {
        "AsyncPartitionedParameterSwapper": {
            "swap_in": _PARAMETERS,
            "swap_into_buffer": _PARAMETERS,
            "swap_out_and_release": _PARAMETERS,
            "swap_out_partitioned_params": _PARAMETERS,
        }
    },
}
"""What is swapped by whom; a wait has the name of what it waits for."""
