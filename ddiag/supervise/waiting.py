"""Whether ranks that stand still wait for others, or merely do something that nobody marks.

After its last step a script may evaluate, export or upload for minutes without a single mark. That is no hang as long
as nobody waits: in a call, in a step, stopped, or gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddiag.schema.phases import Phase
from ddiag.supervise.calls import Facts, read_calls, read_facts
from ddiag.supervise.processes import read_stat
from ddiag.supervise.progress import LocalRank
from ddiag.supervise.stacks import MAIN, main_stack, python_stacks

_UNMARKED = (Phase.NONE, Phase.OTHER, Phase.LOGGING)
_WAITS = ("/torch/distributed/", "_engine_run_backward (")
_MOST_RANKS = 8
ALONE_S = 300.0
"""After which a pause in which nobody waits is looked into all the same."""
ON_DEVICES_S = 60.0
"""The same where ranks wait for devices, which their stacks and rings do not show."""


def somebody_waits(ranks: Sequence[LocalRank]) -> bool:
    """Of *ranks* one stands inside a step or a call, is stopped, holds the GIL asleep, or is gone."""
    return any(_waits(one) for one in ranks[:_MOST_RANKS])


def patience_s(ranks: Sequence[LocalRank]) -> float:
    """How long a pause of *ranks* in which nobody is seen to wait may last."""
    backends = {group.backend for one in ranks[:1] for group in read_facts(one.files.facts).groups.values()}
    return ON_DEVICES_S if any("nccl" in backend for backend in backends) else ALONE_S


def _waits(one: LocalRank) -> bool:
    stat = read_stat(one.pid)
    if stat is None or stat.start_ticks != one.header.start_ticks or stat.state in "ZXtT":
        return True
    live = one.live
    if live.phase not in _UNMARKED:
        return True
    return _in_call(one, read_facts(one.files.facts), live.step) or _stands_in_call(one.pid)


def _in_call(one: LocalRank, facts: Facts, step: int) -> bool:
    calls = (call for group in read_calls(one.files, facts, step=step) for call in group["calls"])
    return any(call["state"] in ("open", "issued") and not call["end_unknown"] for call in calls)


def _stands_in_call(pid: int) -> bool:
    taken = python_stacks(pid)
    if any(stack["thread"] == MAIN and stack["state"] == "gil" for stack in taken.stacks):
        return True
    return any(word in frame for frame in main_stack(taken.stacks) for word in _WAITS)
