"""Tier 'native': the C++ kernel of ``ddiag/capture/native``, when its library lies in the cache."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

from ddiag.capture.clock import anchor
from ddiag.capture.hooks import labels, waits
from ddiag.capture.hooks.c10d_ops import no_async_flag
from ddiag.capture.identity import start_ticks
from ddiag.capture.native.build import MODULE, cached
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.capture.ring import RingWriter
from ddiag.schema.phases import FORMAT_VERSION
from ddiag.schema.ring import RingHeader

CAPACITY = 16_384
"""2 MiB: this ring holds communication alone, and together with the other the process must not grow by 10 MB."""
OLDEST_TORCH = (2, 13)
"""With 2.4 the kernel does not recognise process groups; what lies between was not tried."""
library: Any = None
"""The loaded library while this tier runs; it can be stopped, not unloaded."""
_loaded: Any = None


def start(active: Recorder, patches: Patches) -> bool:
    """Begin; False when no library was built for this torch."""
    global library
    torch = sys.modules["torch"]
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        return False
    path = cached(torch.version)
    if not path.exists():
        return False
    native = _load(path)
    _ring(active)
    if not native.start(str(active.files.native_ring), str(active.files.ring), CAPACITY, active.tid):
        return False
    library = native
    for name in dir(torch):
        dtype = getattr(torch, name)
        if isinstance(dtype, torch.dtype):
            native.set_dtype(dtype, active.names.dtype(str(dtype).removeprefix("torch.")))
    labels.told, labels.told_plan = native.set_context, native.set_plan
    waits.native_waited = native.waited
    active.counted_outside = True
    patches.undo_with(stop)
    return True


def stop() -> None:
    global library
    if library is not None:
        library.stop()
    library = labels.told = labels.told_plan = waits.native_waited = None


def group_met(_active: Recorder, group: Any, _name: str, number: int) -> None:
    if library is not None:
        library.set_group(group, number)


def set_buckets(group: Any, reducer: int, replica: int, sizes: list[int], names: list[int]) -> None:
    """What a *replica*'s reducer, which is number *reducer* in *group*, reduces in every pass."""
    if library is not None:
        library.set_buckets(group, reducer, replica, sizes, names)


def sees() -> dict[str, Any]:
    blind = ["calls under torch.inference_mode", "when calls on a device end", "when calls end that nobody waits for"]
    return {
        "share": 1.0,
        "sees": ["issued from Python", "issued from C++", "end (host backends)"],
        "blind": [*blind, *no_async_flag()],
    }


def _load(path: Path) -> Any:
    global _loaded
    if _loaded is None:
        loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
        spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
        if spec is None:
            raise ImportError(f"{path}: not an extension")
        _loaded = importlib.util.module_from_spec(spec)
        loader.exec_module(_loaded)
    return _loaded


def _ring(active: Recorder) -> None:
    """Create the native kernel's file; it maps it itself."""
    at, who, files = anchor(), active.identity, active.files
    header = RingHeader(
        format_version=FORMAT_VERSION,
        capacity=CAPACITY,
        pid=files.pid,
        rank=who.rank,
        world_size=who.world_size,
        local_rank=who.local_rank,
        attempt=files.attempt,
        start_ticks=start_ticks(),
        wall_ns=at.wall_ns,
        mono_ns=at.mono_ns,
        main_tid=active.tid,
    )
    RingWriter.create(files.native_ring, header)
