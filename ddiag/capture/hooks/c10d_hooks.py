"""Tier 'hooks': torch's own hooks of process groups (torch 2.14 and later), which fire in the groups' kernels.

Every collective is recorded; its end is followed only on a share of the steps, since a callback needs the GIL while the
training thread wants it.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import guarded
from ddiag.capture.hooks.device_times import Begun, wanted
from ddiag.capture.hooks.following import Sequence, follow
from ddiag.capture.hooks.labels import context, label_of
from ddiag.capture.hooks.sampling import Share
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Flag, Op
from ddiag.schema.ring import NO_DTYPE

HOOK_ID = 0xDD1A6
FOLLOW_NS = 40_000
"""What following one end costs beyond our own code: the wake-up of a thread that takes the GIL."""
_OPS = {
    "ALLREDUCE": Op.ALL_REDUCE,
    "ALLGATHER": Op.ALL_GATHER,
    "REDUCE_SCATTER": Op.REDUCE_SCATTER,
    "BROADCAST": Op.BROADCAST,
    "REDUCE": Op.REDUCE,
    "ALLTOALL": Op.ALL_TO_ALL,
    "GATHER": Op.GATHER,
    "SCATTER": Op.SCATTER,
    "SEND": Op.SEND,
    "RECV": Op.RECV,
    "BARRIER": Op.BARRIER,
}
_ASYNC, _END_UNKNOWN = int(Flag.ASYNC), int(Flag.END_UNKNOWN)
_BARRIER, _SEND, _RECV = int(Op.BARRIER), int(Op.SEND), int(Op.RECV)
_IN_PLACE = (int(Op.ALL_REDUCE), int(Op.BROADCAST), int(Op.REDUCE))
"""Torch shows their tensors as input alone."""
_ROOTED = (int(Op.BROADCAST), int(Op.REDUCE), int(Op.GATHER), int(Op.SCATTER), _SEND, _RECV)


Issuing = tuple[int, int, bool, "Begun | None"]
"""token, op, its end on the host is followed, its begin on a device"""


class HooksTier:
    """What all hooked groups share."""

    def __init__(self) -> None:
        self.active: Recorder | None = None
        self._device = wanted(os.environ, sys.modules["torch"])
        self.following = True
        self._share = Share()
        self._cost_ns = 0
        self._followed = 0
        self._dtypes: dict[Any, int] = {}
        names = sys.modules["torch"]._C._distributed_c10d.HookOpName
        self._ops = {getattr(names, name): int(op) for name, op in _OPS.items() if hasattr(names, name)}

    def bind(self, active: Recorder) -> None:
        """Record into *active*, whose names are new."""
        self.active = active
        self._dtypes.clear()
        self.following = True
        active.at_step_end("pg_hooks", self.step_ended)

    def step_ended(self, totals: StepTotals) -> None:
        active = self.active
        if active is None or active is not recorder.current:
            return
        if self._device is not None:
            self._device.resolve(active)
        followed = self._cost_ns + self._followed * FOLLOW_NS if self.following else None
        self._share.step_ended(now_ns() - totals.start_ns, followed)
        totals.own_ns += self._cost_ns + self._followed * FOLLOW_NS
        self._cost_ns = self._followed = 0
        self.following = self._share.looks_at(active.step + 1)

    def before(self, group: HookedGroup, call: Any) -> None:
        active = self.active
        if active is None or active is not recorder.current:
            return
        began = now_ns()
        op = self._ops.get(call.name)
        if op is None:
            return
        given = call.input_tensors
        taken = given if op in _IN_PLACE else call.output_tensors
        tensor = given[0] if given else taken[0] if taken else None
        host = tensor is None or tensor.is_cpu
        flags = context.flags | _ASYNC if call.async_op else context.flags
        followed = self.following and host
        begun = None
        if not followed:
            begun = self._device.begin() if self._device is not None and self.following else None
            flags = flags if begun is not None else flags | _END_UNKNOWN
        bytes_in = bytes_out = 0
        dtype = NO_DTYPE
        if op != _BARRIER:
            bytes_in = 0 if op == _RECV else _size(given)
            bytes_out = bytes_in if taken is given else 0 if op == _SEND else _size(taken)
            if tensor is not None:
                dtype = self._dtypes.get(tensor.dtype, -1)
                dtype = self._dtype(active, tensor.dtype) if dtype < 0 else dtype
        peer = call.root if op in _ROOTED else -1
        number = group.number
        label = label_of(op, number, active.current_phase, bytes_in)
        seq = group.sequence.next(op, peer)
        token = active.begin_collective(op, number, label, flags, bytes_in, bytes_out, dtype, peer, seq)
        group.issuing[call.op_id] = (token, op, followed, begun)
        self._cost_ns += now_ns() - began

    def after(self, group: HookedGroup, call: Any) -> None:
        issuing = group.issuing.pop(call.op_id, None)
        active = self.active
        if issuing is None or active is None:
            return
        began = now_ns()
        token, op, followed, begun = issuing
        if followed:
            self._followed += 1
            follow(active, token, call.work, op)
        else:
            active.issued(token)
            if begun is not None and self._device is not None:
                self._device.follow(token, begun, call.work)
        self._cost_ns += now_ns() - began

    def _dtype(self, active: Recorder, dtype: Any) -> int:
        found = self._dtypes[dtype] = active.names.dtype(str(dtype).removeprefix("torch."))
        return found


def _size(tensors: list[Any]) -> int:
    if len(tensors) == 1:
        return int(tensors[0].nbytes)
    return sum(one.nbytes for one in tensors)


class HookedGroup:
    """One process group; a new one inherits no hooks."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sequence = Sequence()
        self.issuing: dict[int, Issuing] = {}
        """By torch's number of the operation, between the two hooks."""


_tier: HooksTier | None = None
_removers: list[Callable[[], None]] = []


def start(active: Recorder, patches: Patches) -> bool:
    global _tier
    from torch._C._distributed_c10d import ProcessGroup

    if not hasattr(ProcessGroup, "register_pre_hook"):
        return False
    if _tier is None:
        _tier = HooksTier()
        patches.undo_with(stop)
    _tier.bind(active)
    return True


def stop() -> None:
    global _tier
    _tier = None
    while _removers:
        _removers.pop()()


def group_met(_active: Recorder, group: Any, name: str, number: int) -> None:
    tier = _tier
    if tier is None:
        return
    hooked = HookedGroup(number)
    _remove(group)
    kept = weakref.ref(group)
    _removers.append(lambda: _remove(kept()))
    group.register_pre_hook(HOOK_ID, guarded(f"pre_hook {name}", lambda call: tier.before(hooked, call)))
    group.register_post_hook(HOOK_ID, guarded(f"post_hook {name}", lambda call: tier.after(hooked, call)))


def _remove(group: Any) -> None:
    if group is not None:
        group.unregister_pre_hook(HOOK_ID)
        group.unregister_post_hook(HOOK_ID)


def sees() -> dict[str, Any]:
    return {
        "share": 1.0,
        "sees": [
            "issued from Python",
            "issued from C++",
            "torch.inference_mode",
            "end (host backends) on a share of steps",
        ],
        "blind": ["monitored_barrier", "when calls on a device end", "when asynchronous sends and receives end"],
    }
