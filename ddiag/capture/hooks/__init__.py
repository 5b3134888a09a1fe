"""Where torch and its friends are observed: one module per thing.

A hook module may have ``install(module, patches)``, called once when the watched module has been imported, and
``activated(active)``, called with every new recorder. What it replaces goes through *patches*; what it hands to torch is
made by :func:`ddiag.capture.door.around` or :func:`ddiag.capture.door.guarded`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

WATCHED: tuple[tuple[str, str], ...] = (
    ("torch.distributed.distributed_c10d", "join"),
    ("torch.optim.optimizer", "optimizer"),
    ("torch.utils.data.dataloader", "dataloader"),
    ("torch.autograd", "backward"),
)
"""(module of torch or of a framework, module of ours). A module may be watched by several."""

ALWAYS: tuple[str, ...] = ("gc_pauses", "memory")
"""Modules of ours that need no module of torch."""


def hook_module(name: str) -> ModuleType:
    return importlib.import_module(f"ddiag.capture.hooks.{name}")
