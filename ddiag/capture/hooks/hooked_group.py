"""One process group that is recorded through its hooks, see :mod:`ddiag.capture.hooks.c10d_hooks`."""

from __future__ import annotations

import weakref
from threading import get_ident, get_native_id
from typing import TYPE_CHECKING, Any

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import callback
from ddiag.capture.hooks.c10d_ops import size
from ddiag.capture.hooks.following import follow, told_of
from ddiag.capture.hooks.labels import label_of, scopes
from ddiag.capture.ring import HEADER_WORDS, RECORD_WORDS
from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.ring import HEAD, LIVE_PROGRESS, LIVE_SEQ

if TYPE_CHECKING:
    from ddiag.capture.hooks.c10d_hooks import HooksTier
    from ddiag.capture.hooks.device_times import Begun
    from ddiag.capture.recorder import Recorder

    Issuing = tuple["HookedGroup", int, int, int, bool, Begun | None, int]
    """group, torch's number of the call in it, token, op, on the host, its begin on a device, when it began"""

HOOK_ID = 0xDD1A6
_ASYNC, _END_UNKNOWN = int(Flag.ASYNC), int(Flag.END_UNKNOWN)
_COLLECTIVE, _BACKWARD = int(Kind.COLLECTIVE), int(Phase.BACKWARD)
_OPEN, _FAILED = int(State.OPEN), int(State.FAILED)
_BARRIER, _SEND, _RECV = int(Op.BARRIER), int(Op.SEND), int(Op.RECV)
_TRANSFERS = (_SEND, _RECV)
_IN_PLACE = (int(Op.ALL_REDUCE), int(Op.BROADCAST), int(Op.REDUCE))
"""Torch shows their tensors as input alone."""
_ROOTED = (int(Op.BROADCAST), int(Op.REDUCE), int(Op.GATHER), int(Op.SCATTER), _SEND, _RECV)


class HookedGroup:
    """One process group.

    What the two hooks touch lies in few objects: between the kernels of a step, and after a kernel's system calls, each
    one they look into costs about a microsecond.
    """

    __slots__ = (
        "_after",
        "_before",
        "_counting",
        "_hooked",
        "_next",
        "_tier",
        "_transfers",
        "group",
        "number",
        "numbered_by_torch",
        "shared",
        "told",
    )

    def __init__(self, tier: HooksTier, group: Any, name: str, number: int) -> None:
        self.group = weakref.ref(group)
        self.number = number
        self.numbered_by_torch = False
        """Since a step was not looked at, our own count is no longer right: each look begins with torch's."""
        self.shared = False
        """Other threads issue its collectives as well: its hooks must stay."""
        self.told = told_of(number)
        self._next, self._counting = max(0, _torch_count(group)) + 1, 1
        """The next collective's number, and what to add to it then: -1 and 0 where nobody keeps count."""
        self._transfers: dict[tuple[int, int], int] = {}
        """How many were issued to and from each peer: by peer, since other ranks have none."""
        self._hooked = False
        self._tier = tier
        self._before = callback(f"pre_hook {name}", self._begins)
        self._after = callback(f"post_hook {name}", self._issued)

    def _begins(self, call: Any) -> None:
        """Before the kernel. One function, since each call costs more here than most of what it does."""
        began = now_ns()
        tier = self._tier
        active = tier.active
        if active is None or active is not recorder.current or not tier.looking:
            return
        phase, thread, caller = active.current_phase, active.tid, get_ident()
        if caller != active.thread:
            thread = get_native_id()
            self.shared = self.shared or phase != _BACKWARD
        inside = tier.issuing[caller]
        if inside:
            looks_raised(active, inside[-1])
        op = tier.ops[call.name]
        if op < 0:
            return
        given = call.input_tensors
        if op in _IN_PLACE and len(given) == 1 and given[0].layout is tier.strided:
            tensor = given[0]
            bytes_in = bytes_out = tensor.nbytes
            kind = tensor.dtype
        else:
            tensor, bytes_in, bytes_out, kind = _measured(op, given, call)
        host = tensor is None or tensor.is_cpu
        begun = None if host or tier.device is None else tier.device.begin(tensor.device)
        flags = (_ASYNC if call.async_op else 0) | (0 if host else _END_UNKNOWN)
        scope = scopes.mine
        label = scope.label
        if scope.plan or (label < 0 and phase == _BACKWARD):
            label = label_of(scope, op, self.number, phase, bytes_in)
        peer, seq = call.root if op in _ROOTED else -1, self._next
        if op in _TRANSFERS:
            seq = self._transfer_seq(op, peer)
        else:
            self._next = seq + self._counting
        totals = active.totals
        totals.comm_count += 1
        totals.comm_bytes += bytes_in
        # ``ring.begin`` by hand.
        ring = active.ring
        words, token = ring.words, ring.next()
        word = HEADER_WORDS + token % ring.capacity * RECORD_WORDS
        words[word] = 0
        # fmt: off
        ring.pack(
            ring.memory, (word << 3) + 8, _COLLECTIVE, op, flags | scope.flags | tier.sampled, self.number, label,
            active.step, phase, tier.dtypes[kind], peer, seq, began, began, 0, bytes_in, bytes_out, thread, 0.0, _OPEN,
            active.micro_step,
        )
        # fmt: on
        words[word] = words[HEAD] = token + 1
        words[LIVE_SEQ], words[LIVE_PROGRESS] = seq, began
        inside.append((self, call.op_id, token, op, host, begun, began))
        tier.spent_ns += now_ns() - began

    def _issued(self, call: Any) -> None:
        """After the kernel. Torch does not come here when the call itself has raised."""
        tier = self._tier
        active = tier.active
        if active is None:
            return
        inside, number = tier.issuing[get_ident()], call.op_id
        while inside:
            one = inside.pop()
            if one[0] is self and one[1] == number:
                break
            raised(active, one)  # it began later, and this one is over
        else:
            return
        tier.calls += 1
        _group, _number, token, op, host, begun, _began = one
        if host:
            tier.followed += 1
            follow(active, token, call.work, op, self.told)
            return
        active.issued(token)
        if begun is not None and tier.device is not None:
            tier.device.follow(token, begun, call.work)

    def _transfer_seq(self, op: int, peer: int) -> int:
        """The number of a send or receive, counted for each peer, since other ranks have none.

        Gloo's own count of a group includes them, so that it differs between ranks.
        """
        counted = self._transfers[op, peer] = self._transfers.get((op, peer), 0) + 1
        if not self.numbered_by_torch:
            return counted
        self._next, self._counting = -1, 0
        return -1

    def hook(self) -> None:
        group = self.group()
        if group is None:
            return
        self.renumber()
        if not self._hooked:
            self._hooked = True
            group.register_pre_hook(HOOK_ID, self._before)
            group.register_post_hook(HOOK_ID, self._after)

    def renumber(self) -> None:
        """A step that is looked at begins: count on from torch's count, as other ranks do that look at other steps.

        Torch counts some calls twice, and not all of those that it refuses.
        """
        count = -1 if self._transfers else _torch_count(self.group())
        if count >= 0:
            self._next, self._counting = count + 1, 1
        elif self.numbered_by_torch:
            self._next, self._counting = -1, 0

    def unhook(self) -> None:
        group = self.group()
        if group is not None and self._hooked and not self.shared:
            self._hooked = False
            group.unregister_pre_hook(HOOK_ID)
            group.unregister_post_hook(HOOK_ID)


def looks_raised(active: Recorder, call: Issuing) -> None:
    """The thread that is inside *call* begins another one.

    So it has raised, unless a hook of the user's has issued that other one; then torch comes to :meth:`_issued` yet.
    """
    _group, _number, token, _op, _host, _begun, began = call
    active.ring.complete(token, began, _FAILED)


def raised(active: Recorder, call: Issuing) -> None:
    """*call* is over and has failed; nobody knows when."""
    looks_raised(active, call)
    *_, begun, _began = call
    if begun is not None:
        begun.drop()


def _measured(op: int, given: list[Any], call: Any) -> tuple[Any, int, int, Any]:
    """A tensor of any call, None where it has none; bytes in and out; the type of its elements, None without."""
    taken = given if op in _IN_PLACE else call.output_tensors
    tensor = given[0] if given else taken[0] if taken else None
    if tensor is None or op == _BARRIER:
        return tensor, 0, 0, None
    bytes_in = 0 if op == _RECV else size(given)
    return tensor, bytes_in, bytes_in if taken is given else 0 if op == _SEND else size(taken), tensor.dtype


def _torch_count(group: Any) -> int:
    """Collectives the group has seen; -1 of a backend that does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return -1
