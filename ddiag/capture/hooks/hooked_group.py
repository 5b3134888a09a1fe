"""One process group that is recorded through its hooks, see :mod:`ddiag.capture.hooks.c10d_hooks`."""

from __future__ import annotations

import weakref
from threading import get_ident, get_native_id
from typing import TYPE_CHECKING, Any

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import callback
from ddiag.capture.hooks.following import Sequence, follow
from ddiag.capture.hooks.labels import context, label_of
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.ring import LIVE_PROGRESS, LIVE_SEQ, NO_DTYPE

if TYPE_CHECKING:
    from ddiag.capture.hooks.c10d_hooks import HooksTier
    from ddiag.capture.hooks.device_times import Begun

    Issuing = tuple[int, int, bool, Begun | None]
    """token, op, on the host, its begin on a device"""

HOOK_ID = 0xDD1A6
_ASYNC, _END_UNKNOWN = int(Flag.ASYNC), int(Flag.END_UNKNOWN)
_COLLECTIVE, _OPEN, _BACKWARD = int(Kind.COLLECTIVE), int(State.OPEN), int(Phase.BACKWARD)
_BARRIER, _SEND, _RECV = int(Op.BARRIER), int(Op.SEND), int(Op.RECV)
_TRANSFERS = (_SEND, _RECV)
_IN_PLACE = (int(Op.ALL_REDUCE), int(Op.BROADCAST), int(Op.REDUCE))
"""Torch shows their tensors as input alone."""
_ROOTED = (int(Op.BROADCAST), int(Op.REDUCE), int(Op.GATHER), int(Op.SCATTER), _SEND, _RECV)


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
        own_thread = get_ident() == active.thread
        if not own_thread and active.current_phase != _BACKWARD:
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
                kind = tensor.dtype
                dtype = tier.dtypes[kind] if kind in tier.dtypes else tier.dtype(active, kind)
        peer = call.root if op in _ROOTED else -1
        label = context.label
        if label < 0 or context.plan:
            label = label_of(op, self.number, active.current_phase, bytes_in)
        seq = self.seq(op, peer)
        # ``active.begin_collective`` by hand.
        totals, ring = active.totals, active.ring
        totals.comm_count += 1
        totals.comm_bytes += bytes_in
        words = ring.words
        words[LIVE_SEQ] = seq
        words[LIVE_PROGRESS] = began
        # fmt: off
        token = ring.begin(
            _COLLECTIVE, op, flags, self.number, label, active.step, active.current_phase, dtype, peer, seq, began,
            began, 0, bytes_in, bytes_out, active.tid if own_thread else get_native_id(), 0.0, _OPEN,
            active.micro_step,
        )
        # fmt: on
        self.issuing[call.op_id] = (token, op, host, begun)
        tier.spent_ns += now_ns() - began

    def _issued(self, call: Any) -> None:
        """After the kernel."""
        issuing = self.issuing.pop(call.op_id, None)
        tier = self._tier
        active = tier.active
        if issuing is None or active is None:
            return
        tier.calls += 1
        token, op, host, begun = issuing
        if host:
            tier.followed += 1
            follow(active, token, call.work, op, self.number)
            return
        active.issued(token)
        if begun is not None and tier.device is not None:
            tier.device.follow(token, begun, call.work)

    def seq(self, op: int, peer: int) -> int:
        """The number of a call that is about to be issued; -1 where nobody has kept count.

        Gloo's own count includes sends and receives, so that of a group with any differs between ranks.
        """
        if op in _TRANSFERS:
            self._has_transfers = True
        if not self.numbered_by_torch:
            return self._sequence.next(op, peer)
        if self._has_transfers:
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


def _size(tensors: list[Any]) -> int:
    if len(tensors) == 1:
        return int(tensors[0].nbytes)
    return sum(one.nbytes for one in tensors)


def _torch_count(group: Any) -> int:
    """Collectives the group has seen; -1 of a backend that does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return -1
