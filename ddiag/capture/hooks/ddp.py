"""DistributedDataParallel: its configuration, its buckets before and after they are rebuilt, and ``no_sync``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any
from weakref import ref

from ddiag.capture import recorder
from ddiag.capture.door import around, guarded
from ddiag.capture.hooks import c10d_native, ddp_log, labels
from ddiag.capture.hooks.groups import group_id, name_of
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Mark
from ddiag.schema.ring import FORWARDS, REPLICAS

MAX_LOOKS = 12
"""Buckets are rebuilt in the second synchronised iteration, or never (unused parameters)."""
MAX_NAMES = 5000
UNUSED_EVERY = 100
"""Forward passes between two looks at what the search for unused parameters found: torch notes it that often."""
_HALVING = ("fp16_compress", "bf16_compress")
"""Communication hooks that send float32 gradients in half the bytes."""


@dataclass
class Watched:
    """One DDP module under one recorder."""

    index: int
    active: Recorder
    module: ref[Any]
    group: ref[Any] | None = None
    place: int = 0
    """Among the reducers of its group."""
    looks: int = 0
    rebuilt: bool = False
    sizes: list[int] = field(default_factory=list)
    hook: str = ""
    buckets: labels.Buckets | None = None
    passes: int = 0
    """Forward passes with gradients, of a module that searches for unused parameters."""
    synchronised: int = 0
    """Forward passes before a synchronised backward pass."""
    log_at: int = ddp_log.FIRST_LOOK
    """Of these, the one before which DDP's own measurements are read next."""
    unused_bytes: int = -1
    unused_looks: int = 0
    settled: bool = False
    """Nothing is to be learned from its reducer any more."""
    seen: bool = False
    """What there is to do before this forward pass was done when it began."""


_watched: dict[int, Watched] = {}
"""By the module's identity (a WeakKeyDictionary costs several calls a look-up)."""
_count = 0


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch.nn.parallel.distributed``."""
    wrapper = module.DistributedDataParallel
    patches.replace(wrapper, "__init__", partial(around, name="ddp.init", before=_first, after=_built))
    patches.replace(wrapper, "_pre_forward", partial(around, name="ddp.forward", before=_pre_forward, after=_begun))


def activated(_active: Recorder) -> None:
    """Names are new: modules are described again when they are next used."""
    global _count
    _count = 0
    _watched.clear()
    labels.reducers.clear()


def _first(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return args[0] if recorder.current is not None else None


def _built(module: Any, _result: Any, failed: bool) -> None:
    active = recorder.current
    if not failed and active is not None:
        _watch(active, module)


def _watch(active: Recorder, module: Any) -> Watched:
    global _count
    watched = Watched(_count, active, ref(module, guarded("ddp destroyed", partial(_forget, id(module)))))
    _count += 1
    _watched[id(module)] = watched
    active.facts.write("ddp", **_configuration(module, watched.index))
    _look(module, watched)
    return watched


def _forget(identity: int, gone: ref[Any]) -> None:
    watched = _watched.get(identity)
    if watched is not None and watched.module is gone:
        del _watched[identity]
        group = None if watched.group is None else watched.group()
        reducers = None if group is None else labels.reducers.get(group_id(name_of(group)))
        if reducers:  # the module's successor may have buckets of the same sizes
            reducers[watched.place] = labels.Buckets([], [])
            c10d_native.set_buckets(group, watched.place, watched.index, [], [])


def _configuration(module: Any, index: int) -> dict[str, Any]:
    trained = [(name, one) for name, one in module.module.named_parameters() if one.requires_grad]
    cap = getattr(module, "bucket_bytes_cap", None)
    return {
        "index": index,
        "module": type(module.module).__name__,
        "group": name_of(module.process_group),
        "bucket_cap_mb": None if cap is None else cap / (1 << 20),
        "find_unused_parameters": bool(getattr(module, "find_unused_parameters", False)),
        "static_graph": bool(getattr(module, "static_graph", False)),
        "gradient_as_bucket_view": bool(getattr(module, "gradient_as_bucket_view", False)),
        "broadcast_buffers": bool(getattr(module, "broadcast_buffers", False)),
        "parameters": len(trained),
        "parameter_bytes": sum(int(one.nbytes) for _, one in trained),
        "parameter_names": [name for name, _ in trained[:MAX_NAMES]],
    }


def _look(module: Any, watched: Watched) -> None:
    """Read the buckets from the reducer's own log, which costs 0.1 ms."""
    watched.looks += 1
    logged = module._get_ddp_logging_data()
    rebuilt = bool(logged.get("has_rebuilt_buckets"))
    sizes = _numbers(logged.get("rebuilt_bucket_sizes" if rebuilt else "bucket_sizes", ""))
    hook = str(logged.get("comm_hook", ""))  # registered after the module was built
    if not sizes or (sizes, rebuilt, hook) == (watched.sizes, watched.rebuilt, watched.hook):
        return
    watched.sizes, watched.rebuilt, watched.hook = sizes, rebuilt, hook
    indices = logged.get("rebuilt_per_bucket_param_indices", "")
    watched.active.facts.write(
        "ddp_buckets",
        index=watched.index,
        rebuilt=rebuilt,
        sizes=sizes,
        parameters=[[int(one) for one in bucket.split()] for bucket in indices.split(",") if bucket.strip()],
        comm_hook=hook,
        step=watched.active.step,
    )
    if rebuilt:
        watched.active.mark(Mark.BUCKETS_REBUILT, float(len(sizes)))
    if any(one in hook.lower() for one in _HALVING):
        sizes = [one // 2 for one in sizes]
    _label(module, watched, sizes)


def _look_for_unused(module: Any, watched: Watched) -> None:
    """Tell what the search found, when it has changed, or stayed the same for twice as many looks."""
    found = module._get_ddp_logging_data().get("unused_parameter_size")
    if found is None:
        return
    watched.unused_looks += 1
    changed = (found > 0) != (watched.unused_bytes > 0) or watched.unused_bytes < 0
    if changed or watched.unused_looks & (watched.unused_looks - 1) == 0:
        watched.unused_bytes = found
        watched.active.facts.write("ddp_unused", index=watched.index, bytes=found, looks=watched.unused_looks)


def _label(module: Any, watched: Watched, sizes: list[int]) -> None:
    names = [watched.active.names.id(f"ddp{watched.index}/bucket{at}") for at in range(len(sizes))]
    if getattr(module, "find_unused_parameters", False):
        # Before the gradients count, the reducer adds up which parameters were used: an int32 each.
        sizes = [*sizes, 4 * sum(one.requires_grad for one in module.module.parameters())]
        names.append(watched.active.names.id(f"ddp{watched.index}/unused"))
    reducers = labels.reducers.setdefault(group_id(name_of(module.process_group)), [])
    made = labels.Buckets(sizes, names)
    if watched.buckets in reducers:
        reducers[watched.place] = made
    else:
        watched.place = len(reducers)
        reducers.append(made)
    watched.buckets, watched.group = made, ref(module.process_group)
    c10d_native.set_buckets(module.process_group, watched.place, watched.index, sizes, names)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one.strip()]


def forward_begins(active: Recorder, module: Any) -> None:
    """The forward pass of a module is about to begin, with gradients.

    What is left to do once its buckets are known costs a third of what it costs later, between the pass's own work.
    """
    watched = _watched.get(id(module))
    if watched is not None and watched.settled:
        watched.seen = True
        _pass_begins(active, module, watched)


def _pre_forward(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[Recorder, Any] | None:
    active = recorder.current
    if active is None:
        return None
    watched = _watched.get(id(args[0]))
    if watched is not None and watched.seen:
        watched.seen = False
        return None
    return active, args[0]


def _begun(token: tuple[Recorder, Any], _result: Any, _failed: bool) -> None:
    """Torch has rebuilt the buckets by now, if it does so in this pass."""
    active, module = token
    if not sys.modules["torch"].is_grad_enabled():
        return
    watched = _watched.get(id(module)) or _watch(active, module)
    if not _pass_begins(active, module, watched):
        return
    if not watched.rebuilt and watched.looks < MAX_LOOKS:
        _look(module, watched)
    searches = bool(getattr(module, "find_unused_parameters", False))
    if searches:
        watched.passes += 1
        if watched.passes <= MAX_LOOKS or watched.passes % UNUSED_EVERY == 0:
            _look_for_unused(module, watched)
    watched.settled = not searches and (watched.rebuilt or watched.looks >= MAX_LOOKS)


def _pass_begins(active: Recorder, module: Any, watched: Watched) -> bool:
    """Its gradients will be reduced."""
    synchronised = bool(module.require_backward_grad_sync)
    labels.set_no_sync(not synchronised)
    if not synchronised:
        active.mark(Mark.NO_SYNC)
        return False
    watched.synchronised += 1
    if watched.synchronised == watched.log_at:
        watched.log_at = ddp_log.tell(active, watched.index, module, watched.synchronised)
    if c10d_native.library is not None:
        active.ring.words[FORWARDS + watched.index % REPLICAS] += 1
    elif watched.buckets is not None:
        watched.buckets.rewind()
    return True
