"""Tier 'hooks': torch's own hooks of process groups (torch 2.14 and later), which fire in the groups' kernels.

A hook costs 6 µs in a loop, but tens of microseconds between the kernels of a real step, whose data have driven Python
out of the caches. Where hooking every collective would cost too much of the step, the hooks come and go between steps,
as the dispatcher override does: what is recorded is marked as sampled, and a fact says when that began. A group whose
collectives are issued by other threads keeps its hooks, which then return at once: torch's list of hooks has no lock.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import callback
from ddiag.capture.hooks import device_times, labels
from ddiag.capture.hooks.c10d_ops import hook_operations
from ddiag.capture.hooks.device_times import Begun
from ddiag.capture.hooks.following import Sequence, follow
from ddiag.capture.hooks.labels import label_of
from ddiag.capture.hooks.sampling import Share
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Flag, Op, Phase
from ddiag.schema.ring import NO_DTYPE
from ddiag.schema.steps import UNKNOWN

HOOK_ID = 0xDD1A6
HOOK_NS = 20_000
"""What the two hooks of a collective cost around our own code: the GIL, wrapping, cold caches."""
FOLLOW_NS = 40_000
"""What following one end costs beyond our own code: the wake-up of a thread that takes the GIL."""
_ASYNC, _SAMPLED, _END_UNKNOWN = int(Flag.ASYNC), int(Flag.SAMPLED), int(Flag.END_UNKNOWN)
_BACKWARD = int(Phase.BACKWARD)
_BARRIER, _SEND, _RECV = int(Op.BARRIER), int(Op.SEND), int(Op.RECV)
_IN_PLACE = (int(Op.ALL_REDUCE), int(Op.BROADCAST), int(Op.REDUCE))
"""Torch shows their tensors as input alone."""
_ROOTED = (int(Op.BROADCAST), int(Op.REDUCE), int(Op.GATHER), int(Op.SCATTER), _SEND, _RECV)


Issuing = tuple[int, int, bool, "Begun | None"]
"""token, op, on the host, its begin on a device"""


class HooksTier:
    """What all hooked groups share."""

    def __init__(self) -> None:
        self.active: Recorder | None = None
        self.device = device_times.current
        self.looking = True
        self._share = Share()
        self.sampled = 0
        """The flag SAMPLED, once some step was not looked at."""
        self.spent_ns = self.calls = self.followed = 0
        """In the running step: time of our own code, calls, and calls whose end is told."""
        self._groups: list[HookedGroup] = []
        self._dtypes: dict[Any, int] = {}
        self.ops = hook_operations(sys.modules["torch"]._C._distributed_c10d.HookOpName)

    def bind(self, active: Recorder) -> None:
        """Record into *active*, whose names are new."""
        self.active, self.device = active, device_times.current
        self._dtypes.clear()
        self.sampled = self.spent_ns = self.calls = self.followed = 0
        self.look(True)
        active.at_step_end("pg_hooks", self.step_ended)

    def add(self, group: Any, name: str, number: int) -> None:
        """Record what *group*, which inherits no hooks, is used for."""
        self._groups = [one for one in self._groups if one.group() not in (None, group)]
        found = HookedGroup(self, group, name, number)
        self._groups.append(found)
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
        self.active, self.looking = None, False
        for group in self._groups:
            group.shared = False
            group.unhook()

    def step_ended(self, totals: StepTotals) -> None:
        active = self.active
        if active is None or active is not recorder.current:
            return
        upcoming = active.step + 1
        looked, now = self.looking, self._share.looks_at(upcoming)
        if not (looked or now) and self.device is None:
            totals.comm_count = totals.comm_bytes = UNKNOWN
            return
        if self.device is not None:
            self.device.resolve(active)
        cost = self.spent_ns + self.calls * HOOK_NS + self.followed * FOLLOW_NS
        self._share.step_ended(now_ns() - totals.start_ns, cost if looked else None)
        totals.own_ns += cost
        if not looked:
            totals.comm_count = totals.comm_bytes = UNKNOWN
        self.spent_ns = self.calls = self.followed = 0
        now = self._share.looks_at(upcoming)
        if now != looked:
            self.look(now)
        if not (now or self.sampled):
            self.sampled = _SAMPLED
            active.facts.write("tier", tier=SAMPLED_NAME, since_step=upcoming, **sampled_sees())

    def dtype(self, active: Recorder, dtype: Any) -> int:
        found = self._dtypes.get(dtype)
        if found is None:
            found = self._dtypes[dtype] = active.names.dtype(str(dtype).removeprefix("torch."))
        return found


def _size(tensors: list[Any]) -> int:
    if len(tensors) == 1:
        return int(tensors[0].nbytes)
    return sum(one.nbytes for one in tensors)


class HookedGroup:
    """One process group."""

    def __init__(self, tier: HooksTier, group: Any, name: str, number: int) -> None:
        self.group = weakref.ref(group)
        self.number = number
        self.numbered_by_torch = False
        """Since a step was not looked at, our own count is no longer right."""
        self.shared = False
        """Other threads issue its collectives as well: its hooks must stay."""
        self.issuing: dict[int, Issuing] = {}
        """By torch's number of the operation, between the two hooks."""
        self._sequence = Sequence(begun_at=_torch_count(group))
        self._has_transfers = False
        self._hooked = False
        self._tier = tier
        self._before = callback(f"pre_hook {name}", self._begins)
        self._after = callback(f"post_hook {name}", self._issued)

    def _begins(self, call: Any) -> None:
        """Before the kernel. One function, since each call costs more here than most of what it does."""
        tier = self._tier
        active = tier.active
        if active is None or active is not recorder.current:
            return
        if active.current_phase != _BACKWARD and not active.on_training_thread():
            self.shared = True
        if not tier.looking:
            return
        began = now_ns()
        op = tier.ops[int(call.name)]
        if op < 0:
            return
        given = call.input_tensors
        taken = given if op in _IN_PLACE else call.output_tensors
        tensor = given[0] if given else taken[0] if taken else None
        context = labels.context
        flags = context.flags | tier.sampled
        if call.async_op:
            flags |= _ASYNC
        host, begun = True, None
        if tensor is not None and not tensor.is_cpu:
            host = False
            flags |= _END_UNKNOWN
            begun = None if tier.device is None else tier.device.begin(tensor.device)
        bytes_in = bytes_out = 0
        dtype = NO_DTYPE
        if op != _BARRIER:
            bytes_in = 0 if op == _RECV else given[0].nbytes if len(given) == 1 else _size(given)
            bytes_out = bytes_in if taken is given else 0 if op == _SEND else _size(taken)
            if tensor is not None:
                dtype = tier.dtype(active, tensor.dtype)
        peer = call.root if op in _ROOTED else -1
        label = context.label
        if label < 0 or context.plan:
            label = label_of(op, self.number, active.current_phase, bytes_in)
        seq = self.seq(op, peer)
        token = active.begin_collective(op, self.number, label, flags, bytes_in, bytes_out, dtype, peer, seq)
        self.issuing[call.op_id] = (token, op, host, begun)
        tier.spent_ns += now_ns() - began

    def _issued(self, call: Any) -> None:
        """After the kernel."""
        issuing = self.issuing.pop(call.op_id, None)
        tier = self._tier
        active = tier.active
        if issuing is None or active is None:
            return
        began = now_ns()
        tier.calls += 1
        token, op, host, begun = issuing
        if host:
            tier.followed += 1
            follow(active, token, call.work, op, self.number)
        else:
            active.issued(token)
            if begun is not None and tier.device is not None:
                tier.device.follow(token, begun, call.work)
        tier.spent_ns += now_ns() - began

    def seq(self, op: int, peer: int) -> int:
        """The number of a call that is about to be issued; -1 where nobody has kept count.

        Gloo's own count includes sends and receives, so that of a group with any differs between ranks.
        """
        transfer = op in (_SEND, _RECV)
        self._has_transfers |= transfer
        if not self.numbered_by_torch:
            return self._sequence.next(op, peer)
        if transfer or self._has_transfers:
            return -1
        count = _torch_count(self.group())
        return count + 1 if count >= 0 else -1

    def hook(self) -> None:
        group = self.group()
        if group is not None and not self._hooked:
            self._hooked = True
            group.register_pre_hook(HOOK_ID, self._before)
            group.register_post_hook(HOOK_ID, self._after)

    def unhook(self) -> None:
        group = self.group()
        if group is not None and self._hooked and not self.shared:
            self._hooked = False
            group.unregister_pre_hook(HOOK_ID)
            group.unregister_post_hook(HOOK_ID)


def _torch_count(group: Any) -> int:
    """Collectives the group has seen; -1 of a backend that does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return -1


_tier: HooksTier | None = None


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
    if _tier is not None:
        _tier.stop()
    _tier = None


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
