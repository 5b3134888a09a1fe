"""What a training process says of itself once, when recording begins: its fact ``process``.

Everything is looked up in what is loaded already; nothing is imported, initialised or read from a disk for it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ddiag.capture.door import quietly
from ddiag.schema.environment import allowed
from ddiag.schema.secrets import redact_argv

_PACKAGES = {
    "deepspeed": "deepspeed", "lightning": "lightning", "pytorch_lightning": "pytorch-lightning",
    "transformers": "transformers", "accelerate": "accelerate", "numpy": "numpy", "triton": "triton",
    "flash_attn": "flash-attn", "transformer_engine": "transformer-engine", "apex": "apex", "megatron.core": "megatron",
}  # fmt: skip
"""Module -> package."""


def process_facts() -> dict[str, Any]:
    """What could be told; a look that fails leaves its value out."""
    looks: Mapping[str, Callable[[], Any]] = {
        "argv": lambda: redact_argv(sys.argv),
        "executable": lambda: sys.executable,
        "python": lambda: sys.version.split()[0],
        "torch": lambda: str(getattr(_torch(), "__version__", "")),
        "cuda": lambda: getattr(getattr(_torch(), "version", None), "cuda", None),
        "host": platform.node,
        "ppid": os.getppid,
        "packages": _packages,
        "nccl": _nccl,
        "device": _device,
        "threads": _threads,
        "cpus": _cpus,
        "cpus_of_host": os.cpu_count,
        "environment": lambda: allowed(os.environ),
    }
    found = {}
    for name, look in looks.items():
        with quietly(f"process.{name}"):
            found[name] = look()
    return found


def ranges(numbers: Iterable[int]) -> str:
    """``0-3,8`` of 0, 1, 2, 3 and 8."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _torch() -> Any:
    return sys.modules.get("torch")


def _packages() -> dict[str, str]:
    """Versions of what is loaded, as the modules say."""
    found = {package: getattr(sys.modules.get(module), "__version__", None) for module, package in _PACKAGES.items()}
    return {package: version for package, version in found.items() if isinstance(version, str)}


def _nccl() -> str | None:
    """Of the library that serves the default group; asking for it could load it elsewhere."""
    dist, nccl = sys.modules.get("torch.distributed"), sys.modules.get("torch.cuda.nccl")
    if dist is None or nccl is None or not dist.is_available() or not dist.is_initialized():
        return None
    if "nccl" not in str(dist.get_backend()):
        return None
    return ".".join(map(str, nccl.version()))


def _threads() -> int | None:
    """Of one operator. torchrun makes it 1 unless OMP_NUM_THREADS is set."""
    torch = _torch()
    return None if torch is None else torch.get_num_threads()


def _cpus() -> str | None:
    """Which the main thread may run on, where the system tells."""
    allowed_cpus = getattr(os, "sched_getaffinity", None)
    return None if allowed_cpus is None else ranges(allowed_cpus(0))


def _device() -> int | None:
    """The current one, where the process has begun to use any."""
    cuda = sys.modules.get("torch.cuda")
    return cuda.current_device() if cuda is not None and cuda.is_initialized() else None
