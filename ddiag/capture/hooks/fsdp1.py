"""FSDP1 (``FullyShardedDataParallel``): the same scopes as FSDP2, on its flat parameters."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.hooks.units import Scope, done, opening, prefetch, prefetched, scope
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Unit

_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Full name of a wrapped module, from the root."""
_labels: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_missing: list[str] = []


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch.distributed.fsdp._flat_param`` or ``torch.distributed.fsdp._runtime_utils``."""
    if hasattr(module, "FlatParamHandle"):
        handle = module.FlatParamHandle
        gather = opening(Unit.UNSHARD, _label, lambda owner: owner.needs_unshard())
        reshard = opening(Unit.RESHARD, _label)
        patches.replace(handle, "unshard", partial(around, name="fsdp1.unshard", before=gather, after=done))
        patches.replace(handle, "reshard", partial(around, name="fsdp1.reshard", before=reshard, after=done))
    if hasattr(module, "_lazy_init"):
        patches.replace(module, "_lazy_init", partial(around, name="fsdp1.init", before=_root, after=_named))
        patches.replace(
            module, "_prefetch_handle", partial(around, name="fsdp1.pre", before=prefetch, after=prefetched)
        )
        for name in ("_reduce_grad", "_reduce_grad_no_shard"):
            if not patches.replace(module, name, partial(around, name="fsdp1.reduce", before=_reduce, after=done)):
                _missing.append(name)


def activated(active: Recorder) -> None:
    _labels.clear()
    if _missing:
        active.facts.write("hook_missing", hook="fsdp1", names=_missing)


def _root(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """``_lazy_init(state, root_module)``: the first call tells which module is the root."""
    state, module = args[0], args[1]
    return module if recorder.current is not None and state._is_root is None else None


def _named(module: Any, _result: Any, failed: bool) -> None:
    if failed:
        return
    for name, one in module.named_modules():
        clean = name.replace("_fsdp_wrapped_module.", "").replace("._fsdp_wrapped_module", "")
        _names[one] = clean.removeprefix("_fsdp_wrapped_module") or "root"
    if recorder.current is not None:
        recorder.current.facts.write("fsdp", **_configuration(module))


def _configuration(root: Any) -> dict[str, Any]:
    """What the root was wrapped with."""
    prefetch = getattr(root, "backward_prefetch", "")
    return {
        "backward_prefetch": "NO_PREFETCH" if prefetch is None else getattr(prefetch, "name", None),
        "forward_prefetch": getattr(root, "forward_prefetch", None),
        "limit_all_gathers": getattr(root, "limit_all_gathers", None),
        "offload_params": getattr(getattr(root, "cpu_offload", None), "offload_params", None),
        "use_orig_params": getattr(root, "_use_orig_params", None),
    }


def _label(active: Recorder, handle: Any) -> int:
    module = handle._fully_sharded_module
    found = _labels.get(module)
    if found is None:
        name = _names.get(module, type(module).__name__)
        found = _labels[module] = active.names.id(f"fsdp/{name}")
        active.facts.write("fsdp_unit", **_describe(handle, name, found))
    return found


def _describe(handle: Any, name: str, label: int) -> dict[str, Any]:
    flat = handle.flat_param
    return {
        "api": 1,
        "id": label,
        "name": name,
        "parameters": list(getattr(flat, "_fqns", ())),
        "bytes": int(flat._unpadded_unsharded_size.numel()) * flat.dtype.itemsize,
        "sharded_bytes": int(flat._local_shard.nbytes) if hasattr(flat, "_local_shard") else None,
        "strategy": str(getattr(handle, "_sharding_strategy", "")).rpartition(".")[2],
    }


def _reduce(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Scope | None:
    """``_reduce_grad(state, handle)``"""
    active = recorder.current
    return None if active is None else scope(active, int(Unit.REDUCE_GRAD), _label(active, args[1]))
