"""Tier 'dispatch': a Python kernel at the ADInplaceOrView dispatch key, above every backend.

It costs tens of microseconds a call, so it is registered on a share of the steps only. It comes and goes between steps
and while no call is inside; once a thread other than the training thread has issued a collective outside a backward
pass, it goes for good, since a kernel must not be freed under a call. A thread that is known to come, that of a
checkpoint saved in the background, finds it gone, and it comes back after that thread's last call.

Never ``torch.library.get_kernel(…).call_boxed``: it keeps the GIL, and deadlocks with gloo's threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ddiag.capture import recorder
from ddiag.capture.clock import now_ns
from ddiag.capture.door import guarded
from ddiag.capture.hooks import background_saves, device_times
from ddiag.capture.hooks.c10d_ops import OPERATIONS, Places, first, no_async_flag, places, size
from ddiag.capture.hooks.device_times import Begun
from ddiag.capture.hooks.following import follow, told_of
from ddiag.capture.hooks.groups import group_id
from ddiag.capture.hooks.labels import label_of, scopes
from ddiag.capture.hooks.sampling import Share
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.capture.steps import StepTotals
from ddiag.schema.phases import Flag, Op, Phase
from ddiag.schema.ring import NO_DTYPE
from ddiag.schema.steps import UNKNOWN

_ASYNC, _SAMPLED, _END_UNKNOWN = int(Flag.ASYNC), int(Flag.SAMPLED), int(Flag.END_UNKNOWN)
_BARRIER, _SEND, _RECV, _BACKWARD = int(Op.BARRIER), int(Op.SEND), int(Op.RECV), int(Phase.BACKWARD)
DISPATCH_NS = 40_000
"""What a Python kernel costs around our own code, between the kernels of a step: boxing, the GIL, cold caches, and the
thread that follows the end."""


class Taken(NamedTuple):
    """A collective that was begun."""

    token: int
    group: int
    on_host: bool
    begun: Begun | None
    """On a device."""


class DispatchTier:
    """The override, and on which steps it is on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._distributed = torch._C._distributed_c10d
        self._device = device_times.current
        self._after = torch._C._after_ADInplaceOrView_keyset
        self._library: Any = None
        self._kernels: dict[str, Callable[..., Any]] = {}
        for name, op in OPERATIONS.items():
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                overload = packet.default
                where = places([one.name for one in overload._schema.arguments])
                self._kernels[name] = self._kernel(name, overload, int(op), where)
        self.share = Share()
        self._inside = 0
        self._uncounted: set[int] = set()
        self._own_ns = 0
        self._calls = 0
        self._dtypes: dict[Any, int] = {}
        self.active: Recorder | None = None
        self.retired = ""
        """Why the tier has switched itself off for good."""
        self._step_began = 0
        """Records there were when the step began that is looked at."""
        self._told_held = False

    def look(self, now: bool) -> None:
        """Be on, or off."""
        if now == (self._library is not None):
            return
        if not now:
            library, self._library = self._library, None
            library._destroy()
            return
        # Torch unregisters when the Library is collected: it must be kept.
        self._library = self._torch.library.Library("c10d", "IMPL")
        for name, kernel in self._kernels.items():
            self._library.impl(name, kernel, "ADInplaceOrView", with_keyset=True)

    @property
    def looking(self) -> bool:
        return self._library is not None

    def step_ended(self, totals: StepTotals) -> None:
        active = self.active
        if active is None or active is not recorder.current:
            return
        looked, off = self.looking, bool(self.retired) or background_saves.running()
        if self._device is not None:
            self._device.resolve(active)
        elif not looked and (off or not self.share.looks_at(active.step + 1)):
            totals.comm_count = totals.comm_bytes = UNKNOWN
            return
        now = now_ns()
        cost = self._own_ns + self._calls * DISPATCH_NS if looked else None
        self.share.step_ended(now - totals.start_ns, cost)
        if looked:
            totals.own_ns += cost or 0
        else:
            totals.comm_count = totals.comm_bytes = UNKNOWN
        self._own_ns = self._calls = 0
        if self._inside == 0:
            self.look(not off and self.share.looks_at(active.step + 1))
        self._step_began = active.ring.head
        if self.retired and looked and not self.looking:
            active.facts.write("tier_off", tier="dispatch", why=self.retired, step=active.step)

    def hold(self) -> bool:
        """The training thread is about to start another that issues collectives: off now, before that one's first call.

        A step seen in part would look as if its other calls were missing, so what was seen of it is taken back. False
        when this cannot be done; then the other thread's call makes the tier go for good.
        """
        active = self.active
        if active is None or active is not recorder.current or self.retired or self._inside:
            return False
        if not active.on_training_thread() or active.in_phase(_BACKWARD):
            return False
        if self.looking:
            self.look(False)
            active.ring.take_back(self._step_began, _SAMPLED)
            active.totals.own_ns += self._own_ns + self._calls * DISPATCH_NS
            self._own_ns = self._calls = 0
        if not self._told_held:
            self._told_held = True
            active.facts.write("tier", tier="dispatch", since_step=active.step, **sees(held=True))
        return True

    def _kernel(self, name: str, overload: Any, op: int, where: Places) -> Callable[..., Any]:
        begin, finish = guarded(f"c10d.{name}", self._begin), guarded(f"c10d.{name}", self._finish)
        fail = guarded(f"c10d.{name}", _fail)
        redispatch, after = overload.redispatch, self._after

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            active = self.active
            if active is None or active is not recorder.current:
                return redispatch(keys & after, *args, **kwargs)
            began = now_ns()
            taken = begin(active, op, where, args)
            self._inside += 1
            issuing = now_ns()
            try:
                result = redispatch(keys & after, *args, **kwargs)
            except BaseException:
                if taken is not None:
                    fail(active, taken)
                raise
            finally:
                self._inside -= 1
            returned = now_ns()
            if taken is not None:
                finish(active, name, taken, result)
            self._own_ns += now_ns() - returned + issuing - began
            self._calls += 1
            return result

        return kernel

    def _begin(self, active: Recorder, op: int, where: Places, args: tuple[Any, ...]) -> Taken:
        if not active.on_training_thread() and active.current_phase != _BACKWARD:
            self.retired = "collectives are issued by several threads"
        group = self._distributed.ProcessGroup.unbox(args[where.group])
        number = group_id(group.group_name)
        both = args[where.both] if where.both >= 0 else None
        given = both if where.given < 0 else args[where.given]
        taken = both if where.taken < 0 else args[where.taken]
        tensor = first(given)
        tensor = first(taken) if tensor is None else tensor
        bytes_in = 0 if op in (_BARRIER, _RECV) else size(given)
        bytes_out = 0 if op in (_BARRIER, _SEND) else size(taken)
        scope = scopes.mine
        flags = scope.flags | _SAMPLED
        if not 0 <= where.asynchronous < len(args) or args[where.asynchronous]:
            flags |= _ASYNC
        host = tensor is None or tensor.device.type == "cpu"
        begun = None if host or self._device is None else self._device.begin(tensor.device)
        if not host:
            flags |= _END_UNKNOWN
        label = label_of(scope, op, number, active.current_phase, bytes_in)
        peer = args[where.peer] if where.peer >= 0 else -1
        dtype = NO_DTYPE if tensor is None or op == _BARRIER else self._dtype(active, tensor.dtype)
        seq = self._seq(group, number, op)
        token = active.begin_collective(op, number, label, flags, bytes_in, bytes_out, dtype, peer, seq)
        return Taken(token, number, host, begun)

    def _finish(self, active: Recorder, name: str, taken: Taken, result: Any) -> None:
        boxed = result[-1] if isinstance(result, (list, tuple)) else result
        work = None if boxed is None else self._distributed.Work.unbox(boxed)
        if taken.on_host:
            follow(active, taken.token, work, name, told_of(taken.group))
        else:
            active.issued(taken.token)
            if taken.begun is not None and self._device is not None:
                self._device.follow(taken.token, taken.begun, work)

    def _seq(self, group: Any, number: int, op: int) -> int:
        """Torch's own count of the group's collectives, which goes on while nobody looks; -1 where it has none.

        Gloo's count includes sends and receives, so that of a group with any differs between ranks.
        """
        if op in (_SEND, _RECV):
            self._uncounted.add(number)
        if number in self._uncounted:
            return -1
        try:
            return int(group._get_sequence_number_for_group()) + 1
        except RuntimeError:
            self._uncounted.add(number)
            return -1

    def _dtype(self, active: Recorder, dtype: Any) -> int:
        found = self._dtypes.get(dtype)
        if found is None:
            found = self._dtypes[dtype] = active.names.dtype(str(dtype).removeprefix("torch."))
        return found

    def bind(self, active: Recorder) -> None:
        """Record into *active*, whose names are new."""
        self.active, self._device = active, device_times.current
        self._dtypes.clear()
        self._uncounted.clear()
        self._step_began, self._told_held = active.ring.head, False
        active.at_step_end("dispatch", self.step_ended)
        self.look(not self.retired and not background_saves.running())

    def stop(self) -> None:
        self.active = None
        if self._inside == 0:
            self.look(False)


def _fail(active: Recorder, taken: Taken) -> None:
    active.complete(taken.token, ok=False)
    if taken.begun is not None:
        taken.begun.drop()


_tier: DispatchTier | None = None


def start(active: Recorder, patches: Patches) -> bool:
    global _tier
    torch = sys.modules["torch"]
    if not hasattr(torch._C, "_after_ADInplaceOrView_keyset"):
        return False
    if _tier is None:
        _tier = DispatchTier(torch)
        background_saves.holders.append(_tier.hold)
        patches.undo_with(stop)
    _tier.bind(active)
    return True


def stop() -> None:
    global _tier
    if _tier is not None:
        background_saves.holders.remove(_tier.hold)
        _tier.stop()
    _tier = None


def group_met(_active: Recorder, _group: Any, _name: str, _number: int) -> None:
    """The dispatcher needs nothing of a group."""


def sees(*, held: bool = False) -> dict[str, Any]:
    """What to tell of the tier; *held*: it had to stay off while a checkpoint was saved."""
    blind = [
        "steps between the samples",
        *(["steps while torch.distributed.checkpoint.async_save saves in a thread"] if held else []),
        "calls under torch.inference_mode",
        *device_times.unseen(),
        "when asynchronous sends and receives end",
    ]
    return {
        "share": "a share of the steps; the first ones always",
        "sees": ["issued from Python", "issued from C++", "end (host backends)"],
        "blind": [*blind, *no_async_flag()],
    }
