"""FSDP2 (``fully_shard``): every unit's gathering, waiting, resharding and gradient reduction, named by its module."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.hooks import labels
from ddiag.capture.hooks.units import Scope, done, opening, prefetch, prefetched, scope
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Mark, Unit

_labels: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_METHODS = ("unshard", "wait_for_unshard", "reshard", "post_backward", "_prefetch_unshard")
_missing: list[str] = []
_last_no_sync = (-1, -1)


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch.distributed.fsdp._fully_shard._fsdp_param_group`` (before 2.6 in ``_composable``)."""
    group = vars(module).get("FSDPParamGroup")
    if group is None or group.__module__ != module.__name__:
        return
    _missing[:] = [name for name in _METHODS if not hasattr(group, name)]
    gather = opening(Unit.UNSHARD, _label, _to_gather)
    wait = opening(Unit.WAIT_UNSHARD, _label, lambda owner: bool(owner._all_gather_result))
    reshard = opening(Unit.RESHARD, _label, lambda owner: owner.is_unsharded)
    patches.replace(group, "unshard", partial(around, name="fsdp2.unshard", before=gather, after=done))
    patches.replace(group, "wait_for_unshard", partial(around, name="fsdp2.wait", before=wait, after=done))
    patches.replace(group, "reshard", partial(around, name="fsdp2.reshard", before=reshard, after=done))
    patches.replace(group, "post_backward", partial(around, name="fsdp2.reduce", before=_reduce, after=done))
    if "_prefetch_unshard" in vars(group):
        make = partial(around, name="fsdp2.prefetch", before=prefetch, after=prefetched)
        patches.replace(group, "_prefetch_unshard", lambda original: staticmethod(make(original)))


def activated(active: Recorder) -> None:
    _labels.clear()
    if _missing:
        active.facts.write("hook_missing", hook="fsdp2", names=_missing)


def _to_gather(group: Any) -> bool:
    return group._all_gather_result is None and not group.is_unsharded


def _label(active: Recorder, group: Any) -> int:
    found = _labels.get(group)
    if found is None:
        found = _labels[group] = _meet(active, group)
    return found


def _meet(active: Recorder, group: Any) -> int:
    label = active.names.id(f"fsdp/{group._module_fqn or 'root'}")
    active.facts.write("fsdp_unit", **_describe(group, label))
    return label


def _describe(group: Any, label: int) -> dict[str, Any]:
    sizes = [(int(one._orig_size.numel()), one) for one in group.fsdp_params]
    mesh = getattr(group.mesh_info, "mesh", None)
    return {
        "api": 2,
        "id": label,
        "name": group._module_fqn or "root",
        "parameters": [one._param_fqn for one in group.fsdp_params],
        "bytes": sum(count * one.orig_dtype.itemsize for count, one in sizes),
        "sharded_bytes": sum(int(one.sharded_param.to_local().nbytes) for one in group.fsdp_params),
        "mesh": None if mesh is None else list(mesh.shape),
        "reshard_after_forward": bool(group._reshard_after_forward),
        "param_dtype": str(group.mp_policy.param_dtype),
        "reduce_dtype": str(group.mp_policy.reduce_dtype),
        "offload": type(group.offload_policy).__name__,
    }


def _reduce(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Scope | None:
    global _last_no_sync
    active = recorder.current
    if active is None:
        return None
    group = args[0]
    labels.set_no_sync(not group.reduce_grads)
    if not group.reduce_grads and _last_no_sync != (active.step, active.micro_step):
        _last_no_sync = (active.step, active.micro_step)
        active.mark(Mark.NO_SYNC)
    return scope(active, int(Unit.REDUCE_GRAD), _label(active, group))
