"""Hangs with a known answer: ``python -m tools.synth.hang --kind late --out DIR`` writes the dumps of a job that hangs.

Every job is played call by call until nothing moves, so its dumps are what such a job leaves. The truth holds who is
to blame, and, where dumps are missing, every other rank that would have left exactly the same evidence.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.synth.hangs import faults
from tools.synth.hangs.dump import Style, visible, write
from tools.synth.hangs.faults import KINDS, Plan
from tools.synth.hangs.play import Rank
from tools.synth.hangs.program import Layout, ddp, fsdp, three_d

STYLES = (
    Style("2.10"),
    Style("2.9"),
    Style("2.9", as_json=True, prefix="node-a.nccl_trace_rank_"),
    Style("2.4"),
    Style("2.4", as_json=True),
    Style("2.1"),
    Style("2.10", starts=False, prefix="comm_lib_trace_rank_"),
)
ONE_GROUP_STYLES = (Style("2.2"), Style("1.4"))
"""Versions whose dumps do not name groups: only good for jobs of one group."""
NEEDS_STARTS = ("gpu_stuck",)
NEEDS_TYPES = ("other_type",)


@dataclass(frozen=True)
class Hang:
    """One hang."""

    kind: str
    layout: Layout
    ranks: list[Rank]
    culprits: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks without a dump."""
    possible: tuple[tuple[int, ...], ...]
    """Every answer that the evidence allows; more than one = undecidable."""
    style: Style

    @property
    def undecidable(self) -> bool:
        return len(self.possible) > 1


def make_hang(
    seed: int,
    *,
    kind: str | None = None,
    layout: Layout | None = None,
    missing: float = 0.1,
    wrapped: bool | None = None,
) -> Hang:
    """A hang of *kind* (or a random one) in *layout* (or a random one); *missing* is the share of dumps lost."""
    rng = random.Random(seed)
    while True:
        job = layout if layout is not None else _random_layout(rng)
        name = kind if kind is not None else rng.choice(list(KINDS))
        found = faults.choose(rng, job, name)
        if found is not None:
            break
    plan, rank, index = found
    ranks = faults.played(job, plan)
    lost = {number for number in range(job.world) if rng.random() < missing} | set(plan.dead)
    if len(lost) == job.world:
        lost.pop()
    possible = _possible(job, name, plan, rank, index, ranks, frozenset(lost))
    style = _style(rng, job, name, lost, wrapped=wrapped)
    return Hang(name, job, ranks, plan.culprits, tuple(sorted(lost)), possible, style)


def write_hang(hang: Hang, folder: Path) -> list[Path]:
    """Dumps of all ranks that left one."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write(hang.layout, rank, hang.style, folder) for rank in hang.ranks if rank.number not in hang.missing]


def _random_layout(rng: random.Random) -> Layout:
    steps, reuse = rng.choice((3, 4, 5)), rng.random() < 0.4
    kind = rng.choice(("ddp", "fsdp", "tp_pp_dp", "moe"))
    if kind == "ddp":
        return ddp(rng.choice((3, 4, 6, 8, 16, 32)), steps)
    if kind == "fsdp":
        return fsdp(rng.choice((2, 4, 8)), rng.choice((2, 3, 4)), steps, reuse_names=reuse)
    tp, pp, dp = rng.choice(((2, 2, 2), (4, 2, 2), (2, 4, 2), (2, 2, 4), (1, 4, 2), (4, 1, 4), (2, 4, 4)))
    return three_d(tp, pp, dp, steps, reuse_names=reuse, experts=kind == "moe")


def _style(rng: random.Random, layout: Layout, kind: str, lost: set[int], *, wrapped: bool | None) -> Style:
    old = len(layout.groups) == 1 and kind not in NEEDS_TYPES
    styles = [*STYLES, *(ONE_GROUP_STYLES if old else ())]
    style = rng.choice([style for style in styles if style.starts or kind not in NEEDS_STARTS])
    if style.version == "2.2" and layout.world - 1 in lost:
        style = STYLES[0]  # a bare list does not say how many ranks there are
    short = rng.random() < 0.25 if wrapped is None else wrapped
    longest = max(len(program) for program in layout.programs)
    return Style(style.version, style.as_json, longest // 2, style.prefix, style.starts) if short else style


def _possible(
    layout: Layout, kind: str, plan: Plan, rank: int, index: int, ranks: list[Rank], lost: frozenset[int]
) -> tuple[tuple[int, ...], ...]:
    """The truth, and everything else that would have left the same dumps: another rank without one, or nobody."""
    found = [plan.culprits]
    seen = {number: visible(ranks[number]) for number in range(layout.world) if number not in lost}
    blamed = set(plan.culprits)
    if blamed & lost and not blamed <= lost:
        found.append(tuple(sorted(blamed - lost)))
    few_left = 2 * len(lost) >= layout.world
    if not (blamed <= lost or kind == "network" or few_left):
        return tuple(found)
    if kind != "network" and _nobody_to_blame(layout, rank, index, ranks, seen):
        found.append(())
    step = layout.programs[rank][index].step
    for other in sorted(lost - blamed):
        places = [i for i, op in enumerate(layout.programs[other]) if abs(op.step - step) <= 1]
        if any(_same(layout, faults.late(layout, other, place), seen) for place in places):
            found.append((other,))
    return tuple(found)


def _nobody_to_blame(
    layout: Layout, rank: int, index: int, ranks: list[Rank], seen: Mapping[int, tuple[object, ...]]
) -> bool:
    """The dumps are those of a job that ended, or in which one call of these ranks never ends for anybody."""
    if not any(ranks[number].open for number in seen):
        return True
    starts = [(rank, index), *((number, len(ranks[number].calls) - ranks[number].open) for number in seen)]
    halts = (faults.network(layout, who, at) for who, at in starts if at < len(layout.programs[who]))
    return any(plan is not None and _same(layout, plan, seen) for plan in halts)


def _same(layout: Layout, plan: Plan, seen: Mapping[int, tuple[object, ...]]) -> bool:
    ranks = faults.played(layout, plan)
    return all(visible(ranks[number]) == shown for number, shown in seen.items())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--missing", type=float, default=0.0, help="share of dumps that are missing")
    parser.add_argument("--out", type=Path, default=Path("synth-hang"))
    chosen = parser.parse_args(arguments)
    hang = make_hang(chosen.seed, kind=chosen.kind, missing=chosen.missing)
    for path in write_hang(hang, chosen.out):
        print(path)
    truth = {"kind": hang.kind, "layout": hang.layout.kind, "ranks": hang.layout.world, "culprits": hang.culprits}
    print(json.dumps(truth | {"missing": hang.missing, "possible": hang.possible}))


if __name__ == "__main__":
    main()
