"""Which table an event belongs to, decided by its category alone.

Never by the presence of an argument: compiled operators on the host carry a ``stream`` too.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache


class Family(Enum):
    OP = "op"
    OLD_OP = "old_op"
    ANNOTATION = "annotation"
    PYTHON = "python"
    GPU_ANNOTATION = "gpu_annotation"
    LAUNCH = "launch"
    KERNEL = "kernel"
    COPY = "copy"
    MEMSET = "memset"
    IGNORED = "ignored"
    UNKNOWN = "unknown"


_FAMILIES = {
    "cpu_op": Family.OP,
    "operator": Family.OLD_OP,
    "user_annotation": Family.ANNOTATION,
    "python_function": Family.PYTHON,
    "gpu_user_annotation": Family.GPU_ANNOTATION,
    "runtime": Family.LAUNCH,
    "driver": Family.LAUNCH,
    "kernel": Family.KERNEL,
    "concurrent_kernel": Family.KERNEL,
    "collective_comm": Family.KERNEL,
    "hpu_op": Family.KERNEL,
    "mtia_ccp_events": Family.KERNEL,
    "gpu_memcpy": Family.COPY,
    "memcpy": Family.COPY,
    "gpu_memset": Family.MEMSET,
    "memset": Family.MEMSET,
    "trace": Family.IGNORED,
    "overhead": Family.IGNORED,
    "cuda_sync": Family.IGNORED,
    "cuda_event": Family.IGNORED,
    "cuda_profiler_range": Family.IGNORED,
    "external_correlation": Family.IGNORED,
    "cpu_instant_event": Family.IGNORED,
    "gpu_pm_counter": Family.IGNORED,
}
_KINDS = (("mtia", "mtia"), ("xpu", "xpu"), ("hpu", "other"), ("privateuse1", "other"), ("glow", "other"))
_RUNTIME = re.compile(r"_(?:runtime|driver)$")
_OLD_ANNOTATION = re.compile(
    r"^(?:ProfilerStep|Optimizer\.(?:step|zero_grad)|enumerate\(DataLoader\)|DistributedDataParallel\.forward"
    r"|FullyShardedDataParallel|FSDP::|\[?(?:nccl|gloo|mpi|ucc):)"
)
_NOT_WORK = re.compile(r"^event_(?:wait|record)|^(?:wait|record)_?event", re.IGNORECASE)


@lru_cache(maxsize=1024)
def family(category: str | None) -> Family:
    """The family of a category of any torch version and device."""
    if not category:
        return Family.UNKNOWN
    lower = category.lower()
    known = _FAMILIES.get(lower)
    if known is not None:
        return known
    if _RUNTIME.search(lower):
        return Family.LAUNCH
    return Family.UNKNOWN


def is_old_annotation(name: str) -> bool:
    """Torch before 1.11 filed user annotations under operators; these are the profiler's and torch's own."""
    return _OLD_ANNOTATION.match(name) is not None


def is_device_wait(name: str) -> bool:
    """A device queue entry that only waits or marks (MTIA): nothing runs."""
    return _NOT_WORK.match(name) is not None


def device_kind(category: str) -> str:
    """The kind of device that a runtime or device category belongs to; "cuda" for the names all kinds share."""
    lower = category.lower()
    return next((kind for prefix, kind in _KINDS if lower.startswith(prefix)), "cuda")
