"""Kinds of hangs: how each changes a job, and what the right answer is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from tools.synth.hangs.play import Player, Rank, Trouble
from tools.synth.hangs.program import Layout, Op

Program: TypeAlias = tuple[Op, ...]


@dataclass(frozen=True)
class Plan:
    """A fault at one place: the programs with it, the trouble beside them, and who is to blame."""

    programs: tuple[Program, ...]
    culprits: tuple[int, ...]
    trouble: Trouble = field(default_factory=Trouble)
    dead: tuple[int, ...] = ()
    """Ranks that cannot leave a dump."""


Maker: TypeAlias = Callable[[Layout, int, int], "Plan | None"]
"""(layout, culprit, index in its program) -> plan; None where the fault is not possible there."""


def _changed(layout: Layout, rank: int, program: Program) -> tuple[Program, ...]:
    return tuple(program if number == rank else whole for number, whole in enumerate(layout.programs))


def late(layout: Layout, rank: int, index: int) -> Plan:
    """Its host stops: data loader, user code, a lock."""
    return Plan(layout.programs, (rank,), Trouble(stop_at={rank: index}))


def dead(layout: Layout, rank: int, index: int) -> Plan:
    """Its process is gone, and with it its dump."""
    return replace(late(layout, rank, index), dead=(rank,))


def two_late(layout: Layout, rank: int, index: int) -> Plan | None:
    """The same call of a group misses two of its ranks."""
    members = layout.groups[layout.programs[rank][index].group].ranks
    others = [other for other in members if other != rank and len(layout.programs[other]) > index]
    op = layout.programs[rank][index]
    others = [other for other in others if layout.programs[other][index].group == op.group]
    if op.peer is not None or len(members) < 4 or not others:
        return None
    other = others[index % len(others)]
    return Plan(layout.programs, tuple(sorted((rank, other))), Trouble(stop_at={rank: index, other: index}))


def other_op(layout: Layout, rank: int, index: int) -> Plan | None:
    """It takes a branch and calls something else."""
    op = layout.programs[rank][index]
    if op.peer is not None or op.name == "all_to_all":
        return None
    name = "broadcast" if op.name != "broadcast" else "all_reduce"
    return _with(layout, rank, index, replace(op, name=name, numel_out=op.numel_in, line=op.line + 300))


def other_size(layout: Layout, rank: int, index: int) -> Plan | None:
    """A tensor of its own size."""
    op = layout.programs[rank][index]
    if op.peer is not None or op.name == "all_to_all":
        return None
    return _with(layout, rank, index, replace(op, numel_in=op.numel_in + 7, numel_out=op.numel_out + 7))


def other_type(layout: Layout, rank: int, index: int) -> Plan | None:
    op = layout.programs[rank][index]
    return None if op.peer is not None else _with(layout, rank, index, replace(op, dtype="Half"))


def _with(layout: Layout, rank: int, index: int, op: Op) -> Plan:
    program = layout.programs[rank]
    return Plan(_changed(layout, rank, (*program[:index], op, *program[index + 1 :])), (rank,))


def skipped(layout: Layout, rank: int, index: int) -> Plan | None:
    """It leaves out one collective and goes on."""
    op, program = layout.programs[rank][index], layout.programs[rank]
    if op.peer is not None:
        return None
    return Plan(_changed(layout, rank, program[:index] + program[index + 1 :]), (rank,))


def uneven(layout: Layout, rank: int, index: int) -> Plan | None:
    """Its data end a step early: it goes to the barrier at the end of the epoch."""
    program = layout.programs[rank]
    step = program[index].step
    cut = tuple(op for op in program if op.step < step)
    if not cut:
        return None
    return Plan(_changed(layout, rank, (*cut, Op(0, "barrier", 1, 1, step, "Float", line=200, blocks=True))), (rank,))


def left_early(layout: Layout, rank: int, index: int) -> Plan | None:
    """Its data end a step early and it goes to an evaluation that calls nothing."""
    step = layout.programs[rank][index].step
    cut = next(place for place, op in enumerate(layout.programs[rank]) if op.step == step)
    return late(layout, rank, cut)


def alone(layout: Layout, rank: int, index: int) -> Plan | None:
    """It gathers for a checkpoint that the others know nothing of."""
    program = layout.programs[rank]
    gather = Op(0, "all_gather", 4096, 4096 * layout.world, program[index].step, "Float", line=220, blocks=True)
    return Plan(_changed(layout, rank, (*program[:index], gather, *program[index:])), (rank,))


def send_send(layout: Layout, rank: int, index: int) -> Plan | None:
    """Two pipeline neighbours both send first, and each send blocks its stream."""
    op = layout.programs[rank][index]
    if op.name != "send" or op.peer is None:
        return None
    peer = op.peer
    sends = {rank: peer, peer: rank}
    programs = list(layout.programs)
    for one, other in sends.items():
        cut = tuple(o for o in layout.programs[one] if o.step < op.step)
        both = (
            Op(op.group, "send", op.numel_in, op.numel_in, op.step, peer=other, line=109),
            Op(op.group, "recv", op.numel_in, op.numel_in, op.step, peer=other, line=110, blocks=True),
        )
        programs[one] = cut + both
    return Plan(tuple(programs), tuple(sorted(sends)), Trouble())


def crossed(layout: Layout, rank: int, index: int) -> Plan | None:
    """It calls two groups that share ranks in the other order."""
    program = layout.programs[rank]
    first = program[index]
    if first.peer is not None or first.overlapped or len(layout.groups[first.group].ranks) < 2:
        return None
    later = next((place for place in range(index + 1, len(program)) if not program[place].overlapped), None)
    if later is None or program[later].peer is not None or program[later].group == first.group:
        return None
    second = program[later]
    shared = set(layout.groups[first.group].ranks) & set(layout.groups[second.group].ranks)
    if len(shared) < 2:
        return None
    swapped = list(program)
    swapped[index], swapped[later] = replace(second, blocks=False), replace(first, blocks=second.blocks)
    return Plan(_changed(layout, rank, tuple(swapped)), (rank,))


def gpu_stuck(layout: Layout, rank: int, index: int) -> Plan | None:
    """Its host goes on, its GPU begins nothing more."""
    op = layout.programs[rank][index]
    if op.peer is not None or len(layout.groups[op.group].ranks) < 4 or op.overlapped:
        return None
    return Plan(layout.programs, (rank,), Trouble(gpu_stuck_at={rank: index}))


def network(layout: Layout, rank: int, index: int) -> Plan | None:
    """Everybody is in the call, nobody leaves it."""
    found = _call_at(layout, rank, index)
    return None if found is None else Plan(layout.programs, (), Trouble(never=found))


def unfinished(layout: Layout, rank: int, index: int) -> Plan | None:
    """The call ends everywhere but on one rank."""
    found = _call_at(layout, rank, index)
    op = layout.programs[rank][index]
    if found is None or op.overlapped or len(layout.groups[found[0]].ranks) < 3:
        return None
    return Plan(layout.programs, (rank,), Trouble(not_for=(*found, rank)))


def _call_at(layout: Layout, rank: int, index: int) -> tuple[int, int] | None:
    op = layout.programs[rank][index]
    if op.peer is not None or len(layout.groups[op.group].ranks) < 2:
        return None
    before = layout.programs[rank][: index + 1]
    return op.group, sum(o.group == op.group and o.peer is None for o in before)


KINDS: Mapping[str, Maker] = MappingProxyType(
    {
        "late": late,
        "dead": dead,
        "two_late": two_late,
        "other_op": other_op,
        "other_size": other_size,
        "other_type": other_type,
        "skipped": skipped,
        "uneven": uneven,
        "left_early": left_early,
        "alone": alone,
        "send_send": send_send,
        "crossed": crossed,
        "gpu_stuck": gpu_stuck,
        "network": network,
        "unfinished": unfinished,
    }
)


def played(layout: Layout, plan: Plan) -> list[Rank]:
    return Player(layout, plan.programs, plan.trouble).run()


def hangs(ranks: list[Rank]) -> bool:
    """Somebody waits for ever (a fault at the very end may leave a job that simply ends)."""
    return any(rank.open for rank in ranks)


def choose(rng: random.Random, layout: Layout, kind: str) -> tuple[Plan, int, int] | None:
    """A plan of *kind* at a random place that really hangs; None when the layout has none (after 40 tries)."""
    for _ in range(40):
        rank = rng.randrange(layout.world)
        index = rng.randrange(len(layout.programs[rank]))
        if layout.programs[rank][index].step < 1:
            continue
        plan = KINDS[kind](layout, rank, index)
        if plan is not None and hangs(played(layout, plan)):
            return plan, rank, index
    return None
