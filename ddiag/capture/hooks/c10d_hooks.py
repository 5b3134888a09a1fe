"""Tier 'hooks': torch's own hooks of process groups (torch 2.14 and later), which fire in the groups' kernels.

A hook costs 6 µs in a loop, but tens of microseconds between the kernels of a real step, whose data have driven Python
out of the caches; being told of an end by a backend's thread, which takes the interpreter, costs as much again. Where
hooking every collective would cost too much of the step, the hooks come and go between steps, as the dispatcher
override does: what is recorded is marked as sampled, and a fact says when that began. A group whose collectives are
issued by other threads keeps its hooks, which then return at once: torch's list of hooks has no lock.
"""

from __future__ import annotations

import atexit
import sys
from collections import defaultdict
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import guarded
from ddiag.capture.hooks import device_times
from ddiag.capture.hooks.c10d_ops import hook_operations
from ddiag.capture.hooks.hooked_group import HookedGroup, raised
from ddiag.capture.hooks.sampling import Share
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Flag
from ddiag.schema.ring import NO_DTYPE
from ddiag.schema.steps import UNKNOWN

if TYPE_CHECKING:
    from ddiag.capture.hooks.hooked_group import Issuing

HOOK_NS = 23_000
"""What the two hooks of a collective cost around our own code before it: the GIL, wrapping, cold caches, and our code
after it. On a machine where that code itself takes longer, they cost as much as it does."""
FOLLOW_NS = 40_000
"""What following one end costs beyond our own code: the wake-up of a thread that takes the GIL. On a slower machine
half as much again as our own code."""
_SAMPLED = int(Flag.SAMPLED)


class HooksTier:
    """What all hooked groups share."""

    __slots__ = (
        "_groups",
        "active",
        "calls",
        "device",
        "dtypes",
        "followed",
        "issuing",
        "looking",
        "ops",
        "sampled",
        "share",
        "spent_ns",
        "strided",
    )

    def __init__(self) -> None:
        self.active: Recorder | None = None
        self.device = device_times.current
        self.looking = True
        self.share = Share()
        self.sampled = 0
        """The flag SAMPLED, once some step was not looked at."""
        self.spent_ns = self.calls = self.followed = 0
        """In the running step: time of our own code, calls, and calls whose end is told."""
        self._groups: list[HookedGroup] = []
        self.issuing: defaultdict[int, list[Issuing]] = defaultdict(list)
        """The calls each thread is inside, the outermost first; what raised, torch does not tell."""
        self.strided = sys.modules["torch"].strided
        self.dtypes = _Dtypes()
        self.ops = hook_operations(sys.modules["torch"]._C._distributed_c10d.HookOpName)

    def bind(self, active: Recorder) -> None:
        """Record into *active*, whose names are new."""
        self.active, self.device = active, device_times.current
        self.dtypes.bind(active)
        self.issuing = defaultdict(list)
        self.sampled = self.spent_ns = self.calls = self.followed = 0
        self.look(True)
        active.at_step_end("pg_hooks", self.step_ended)
        active.at_close("pg_hooks", self._none_under_way)

    def add(self, group: Any, name: str, number: int) -> None:
        """Record what *group*, which inherits no hooks, is used for."""
        self._groups = [one for one in self._groups if one.group() not in (None, group)]
        found = HookedGroup(self, group, name, number)
        self._groups.append(found)
        found.numbered_by_torch = not self.looking
        if self.looking:
            found.hook()

    def look(self, now: bool) -> None:
        """Be on, or off."""
        self.looking = now
        for group in self._groups:
            if now:
                group.hook()
            else:
                group.numbered_by_torch = True
                group.unhook()

    def stop(self) -> None:
        self.active = None
        self.let_go()

    def let_go(self) -> None:
        """Have no hook in torch any more.

        Groups that nobody destroys outlive the interpreter, and what they hold of Python they cannot free without it:
        the process would end with a segmentation fault.
        """
        self.looking = False
        for group in self._groups:
            group.shared = False
            group.unhook()

    def step_ended(self, totals: StepTotals) -> None:
        active = self.active
        if active is None or active is not recorder.current:
            return
        upcoming = active.step + 1
        looked, now = self.looking, self.share.looks_at(upcoming)
        if not (looked or now) and self.device is None:
            totals.comm_count = totals.comm_bytes = UNKNOWN
            return
        self._none_under_way()
        if self.device is not None:
            self.device.resolve(active)
        cost = self._cost_ns()
        self.share.step_ended(now_ns() - totals.start_ns, cost if looked else None)
        totals.own_ns += cost
        if not looked:
            totals.comm_count = totals.comm_bytes = UNKNOWN
        self.spent_ns = self.calls = self.followed = 0
        now = self.share.looks_at(upcoming)
        if now != looked:
            self.look(now)
        elif now:
            for group in self._groups:
                group.renumber()
        if not (now or self.sampled):
            self.sampled = _SAMPLED
            active.facts.write("tier", tier=SAMPLED_NAME, since_step=upcoming, **sampled_sees())

    def _none_under_way(self) -> None:
        """The calling thread is here, and so in no call: one that it began, and that did not return, has raised."""
        inside = self.issuing[get_ident()]
        while inside and self.active is not None:
            raised(self.active, inside.pop())

    def _cost_ns(self) -> int:
        """What looking at the running step has cost its training thread."""
        spent = self.spent_ns
        around = max(self.calls * HOOK_NS, spent)
        after = max(self.followed * FOLLOW_NS, 3 * spent * self.followed // (2 * max(1, self.calls)))
        return spent + around + after


class _Dtypes(dict[Any, int]):
    """Our number of each of torch's types of elements; of None, which is no type, as well."""

    def bind(self, active: Recorder) -> None:
        """Number anew, by the names of *active*."""
        self.clear()
        self[None] = NO_DTYPE
        self._names = active.names

    def __missing__(self, dtype: Any) -> int:
        found = self[dtype] = self._names.dtype(str(dtype).removeprefix("torch."))
        return found


_tier: HooksTier | None = None


def start(active: Recorder, patches: Patches) -> bool:
    global _tier
    from torch._C._distributed_c10d import ProcessGroup

    if not hasattr(ProcessGroup, "register_pre_hook"):
        return False
    if _tier is None:
        _tier = HooksTier()
        patches.undo_with(stop)
        atexit.register(_at_exit)  # not when a recording is closed: a forked child, which has none, has hooked groups
    _tier.bind(active)
    return True


def stop() -> None:
    global _tier
    atexit.unregister(_at_exit)
    if _tier is not None:
        _tier.stop()
    _tier = None


def _let_go() -> None:
    if _tier is not None:
        _tier.let_go()


_at_exit = guarded("pg_hooks.at_exit", _let_go)


def group_met(_active: Recorder, group: Any, name: str, number: int) -> None:
    if _tier is not None:
        _tier.add(group, name, number)


SAMPLED_NAME = "hooks-sampled"
"""Of the tier once it no longer looks at every step: in a hang its last record need not be the last call."""
_BLIND = ("monitored_barrier", "when asynchronous sends and receives end")


def sees() -> dict[str, Any]:
    return {
        "share": "every step, or a share of them where that would cost too much; the first ones always",
        "sees": ["issued from Python", "issued from C++", "torch.inference_mode", "end (host backends)"],
        "blind": [*_BLIND, *device_times.unseen()],
    }


def sampled_sees() -> dict[str, Any]:
    blind = ["steps between the samples", *_BLIND, *device_times.unseen()]
    return {**sees(), "share": "a share of the steps", "blind": blind}
