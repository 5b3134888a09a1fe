"""Which tier sees this process's collectives: chosen once, when the first group of a recording is there.

Best first: the native kernel (if its library was built for this torch), process-group hooks (torch 2.14 and later), the
dispatcher override on a share of the steps. All fill the same records; a fact says which one runs and what it cannot
see.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from ddiag.capture.door import quietly
from ddiag.capture.hooks import (
    c10d_dispatch,
    c10d_hooks,
    c10d_native,
    device_times,
    flight_recorder,
    following,
    groups,
    waits,
)
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder

TIER_VARIABLE = "DDIAG_TIER"
"""native, hooks, dispatch or none: for tests and measurements."""
_TIERS = {"native": c10d_native, "hooks": c10d_hooks, "dispatch": c10d_dispatch}

_patches: Patches | None = None
_told: Recorder | None = None


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch.distributed.distributed_c10d``."""
    global _patches
    _patches = patches
    version = sys.modules["torch.version"]
    with quietly("flight_recorder"):
        flight_recorder.prepare(os.environ, torch_version=version.__version__, cuda=version.cuda)
    groups.install(module, patches)
    groups.watchers.append(_group_met)
    patches.undo_with(lambda: groups.watchers.remove(_group_met))
    waits.install(module, patches)


def activated(active: Recorder) -> None:
    groups.activated(active)
    active.at_close("collectives", following.drain)
    active.at_step_end("groups", lambda _totals: groups.told_late(active))


def _group_met(active: Recorder, group: Any, name: str, number: int) -> None:
    global _told
    if _told is not active:
        _told = active
        _choose(active)
    for tier in _TIERS.values():
        tier.group_met(active, group, name, number)


def _choose(active: Recorder) -> None:
    wanted = os.environ.get(TIER_VARIABLE, "")
    timing = False
    with quietly("device_times"):
        timing = device_times.choose(os.environ, active.files.folder.parents[1], sys.modules["torch"]) is not None
    for name, tier in _TIERS.items():
        if name != wanted if wanted else name == "native" and timing:
            continue  # the native kernel cannot time on a device
        with quietly(f"tier {name}"):
            if _patches is not None and tier.start(active, _patches):
                active.facts.write("tier", tier=name, device_timing=timing, **tier.sees())
                return
    active.facts.write("tier", tier="none", sees=[], blind=["every collective"], why=_why(wanted))


def _why(wanted: str) -> str:
    return f"{TIER_VARIABLE}={wanted}" if wanted else "no tier fits this torch"
