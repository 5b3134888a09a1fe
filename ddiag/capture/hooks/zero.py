"""DeepSpeed ZeRO: its buckets and units. What offloading copies is in ``zero_copies.py``, what it swaps to NVMe in
``zero_swaps.py``.

All of these are private to DeepSpeed and differ between versions: what exists is wrapped, a fact names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.hooks import labels, zero_copies
from ddiag.capture.hooks.units import Scope, done, scope
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Unit


class Gathering(NamedTuple):
    """Of parameters, some of whose parts may lie on the host."""

    opened: Scope
    fetched: zero_copies.Spans


Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]

_parameter_names: dict[int, str] = {}
"""By DeepSpeed's number of a parameter."""
_module_names: dict[int, str] = {}
"""By DeepSpeed's number of a module."""
_bucket = (-1, -1, 0)
"""step, micro step, buckets reduced in it so far"""
_fetching: list[Any] = []
"""Modules whose parameters are being fetched, outermost first."""
_missing: list[str] = []


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is one of DeepSpeed's ZeRO modules."""
    for owner, methods in _HOOKS.get(module.__name__.rpartition(".")[2], {}).items():
        kind = vars(module).get(owner)
        for method, (before, after) in methods.items():
            name = f"{owner}.{method}"
            make = partial(around, name=f"zero.{method}", before=before, after=after)
            if kind is None or not patches.replace(kind, method, make):
                _missing.append(name)


def activated(active: Recorder) -> None:
    if _missing:
        active.facts.write("hook_missing", hook="zero", names=_missing)


def name_parameters(model: Any) -> None:
    """ZeRO-3 numbers parameters and modules: remember their names."""
    for name, one in model.named_parameters():
        number = getattr(one, "ds_id", None)
        if number is not None:
            _parameter_names[number] = name
    for name, one in model.named_modules():
        number = getattr(one, "ds_id", None)
        if number is not None:
            _module_names[number] = name or "root"


def _unit(unit: Unit, name: Callable[[Recorder, tuple[Any, ...]], str]) -> tuple[Before, Callable[..., None]]:
    number = int(unit)

    def before(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Scope | None:
        active = recorder.current
        return None if active is None else scope(active, number, active.names.id(name(active, args)))

    return before, done


def _next_bucket(active: Recorder, _args: tuple[Any, ...]) -> str:
    global _bucket
    step, micro, count = _bucket
    now = (active.step, active.micro_step)
    count = count if (step, micro) == now else 0
    _bucket = (*now, count + 1)
    return f"zero/bucket{count}"


def _module_name(_active: Recorder, args: tuple[Any, ...]) -> str:
    module = args[1] if len(args) > 1 else None
    number = getattr(module, "ds_id", None)
    return f"zero/{_module_names.get(number, type(module).__name__) if number is not None else 'root'}"


def _fetch(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Scope | None:
    active = recorder.current
    if active is None or len(args) < 2:
        return None
    opened = scope(active, int(Unit.WAIT_UNSHARD), active.names.id(_module_name(active, args)))
    _fetching.append(args[1])
    return opened


def _fetched(opened: Scope, result: Any, failed: bool) -> None:
    _fetching.pop()
    done(opened, result, failed)


def _gather(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Gathering | None:
    """``__all_gather_params_(params, …)``: of the module that waits for them, or ahead of time."""
    active = recorder.current
    parameters = [one for one in args[1] if one.ds_status.name == "NOT_AVAILABLE"] if len(args) > 1 else []
    if active is None or not parameters:
        return None
    own = {id(one) for one in _fetching[-1].parameters(recurse=False)} if _fetching else set()
    unit = Unit.UNSHARD if any(id(one) in own for one in parameters) else Unit.PREFETCH
    size = sum(int(getattr(one, "ds_numel", 0)) * one.element_size() for one in parameters)
    opened = scope(active, int(unit), active.names.id(_of(parameters)), size)
    return Gathering(opened, zero_copies.fetching(active, parameters))


def _gathered(gathering: Gathering, result: Any, failed: bool) -> None:
    zero_copies.ended(gathering.fetched, result, failed)
    done(gathering.opened, result, failed)


def _of(parameters: list[Any]) -> str:
    """The modules some parameters belong to."""
    names = (_parameter_names.get(getattr(one, "ds_id", -1), "?") for one in parameters)
    modules = sorted({name.rpartition(".")[0] or name for name in names})
    return f"zero/{modules[0]}" + (f"+{len(modules) - 1}" if len(modules) > 1 else "")


def _step(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool | None:
    active = recorder.current
    if active is None:
        return None
    labels.push(active.names.id("zero/step"))
    return True


def _stepped(_token: bool, _result: Any, _failed: bool) -> None:
    labels.pop()
    zero_copies.returned((), {})


_STEP = (_step, _stepped)
_HOOKS: dict[str, dict[str, dict[str, tuple[Before, Callable[..., None]]]]] = {
    "stage_1_and_2": {
        "DeepSpeedZeroOptimizer": {
            "reduce_ipg_grads": _unit(Unit.REDUCE_GRAD, _next_bucket),
            "step": _STEP,
            **zero_copies.STAGE_1_AND_2,
        }
    },
    "stage3": {
        "DeepSpeedZeroOptimizer_Stage3": {
            "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads": _unit(Unit.REDUCE_GRAD, _next_bucket),
            "step": _STEP,
            **zero_copies.STAGE_3,
        }
    },
    "partitioned_param_coordinator": {
        "PartitionedParameterCoordinator": {
            "fetch_sub_module": (_fetch, _fetched),
            "_PartitionedParameterCoordinator__all_gather_params_": (_gather, _gathered),
            "release_sub_module": _unit(Unit.RESHARD, _module_name),
        }
    },
}
