"""Pipeline parallelism: which stage and micro-batch a chunk of work and its transfers belong to."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.hooks import labels
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Phase
from ddiag.schema.ring import NO_NAME

_TRANSFERS = ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops")
_FORWARD = int(Phase.FORWARD)
_planned: dict[int, int] = {}
"""Label of a transfer that a stage has planned and the schedule will issue, by the identity of its P2POp."""
MAX_PLANNED = 4096


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch.distributed.pipelining.stage`` or ``.schedules``."""
    stage = vars(module).get("_PipelineStageBase")
    if stage is not None and stage.__module__ == module.__name__:
        patches.replace(
            stage, "forward_one_chunk", partial(around, name="pp.forward", before=_forward, after=_forwarded)
        )
        for name in ("backward_one_chunk", "backward_weight_one_chunk"):
            patches.replace(stage, name, partial(around, name="pp.backward", before=_backward, after=_done))
        for name in _TRANSFERS:
            patches.replace(stage, name, partial(around, name="pp.plan", before=_plan, after=_planned_ops))
    if "_batch_p2p" in vars(module):
        patches.replace(module, "_batch_p2p", partial(around, name="pp.transfer", before=_transfer, after=_transferred))


def activated(_active: Recorder) -> None:
    _planned.clear()


def _label(active: Recorder, stage: Any, chunk: Any) -> int:
    return active.names.id(f"pp/stage{stage.stage_index}/mb{chunk}")


def _chunk(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else next(iter(kwargs.values()), "?")


def _forward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Recorder, int] | None:
    active = recorder.current
    if active is None:
        return None
    label = _label(active, args[0], _chunk(args, kwargs))
    labels.push(label)
    return active, active.enter(_FORWARD, label)


def _forwarded(token: tuple[Recorder, int], _result: Any, failed: bool) -> None:
    labels.pop()
    token[0].leave(token[1], failed)


def _backward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    active = recorder.current
    if active is None:
        return None
    labels.push(_label(active, args[0], _chunk(args, kwargs)))
    return True


def _done(_token: bool, _result: Any, _failed: bool) -> None:
    labels.pop()


def _plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    active = recorder.current
    return None if active is None else _label(active, args[0], _chunk(args, kwargs))


def _planned_ops(label: int, result: Any, failed: bool) -> None:
    if failed:
        return
    if len(_planned) > MAX_PLANNED:
        _planned.clear()
    for one in result:
        _planned[id(one)] = label


def _transfer(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool | None:
    """``_batch_p2p(p2p_ops, …)`` issues its transfers in the order of the list."""
    if recorder.current is None or not args[0]:
        return None
    labels.plan([_planned.pop(id(one), NO_NAME) for one in args[0]])
    return True


def _transferred(_token: bool, _result: Any, _failed: bool) -> None:
    labels.plan([])
