"""How often ddiag names the right rank: ``python -m tools.score_hangs --count 1000`` makes hangs and diagnoses them.

Random layout, random kind of fault, random culprit, dumps missing. An answer is right when it names exactly the
culprits. Where missing dumps leave more than one possibility (see :mod:`tools.synth.hang`), it is right when it names
nobody, only culprits, or one of the possibilities without high confidence. *Harmful*: an innocent blamed with high
confidence.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddiag.analysis.families import derive
from ddiag.api import load
from ddiag.model.signals_incident import Stall
from tools.synth.hang import Hang, make_hang, write_hang

LEAST_RIGHT = 0.99


@dataclass(frozen=True)
class Answer:
    """One hang and what was said of it."""

    seed: int
    hang: Hang
    stall: Stall | None

    @property
    def named(self) -> tuple[int, ...]:
        return self.stall.culprits if self.stall is not None else ()

    @property
    def right(self) -> bool:
        if not self.hang.undecidable:
            return self.stall is not None and self.named == self.hang.culprits
        if set(self.named) <= set(self.hang.culprits):
            return True
        return self.named in self.hang.possible and not self.harmful

    @property
    def harmful(self) -> bool:
        high = self.stall is not None and self.stall.confidence == "high"
        return high and bool(set(self.named) - set(self.hang.culprits))


def answer(seed: int, *, kind: str | None = None, missing: float = 0.1) -> Answer:
    """Make the hang of *seed*, write its dumps, and diagnose them."""
    hang = make_hang(seed, kind=kind, missing=missing)
    with tempfile.TemporaryDirectory() as folder:
        files = write_hang(hang, Path(folder))
        stall = derive(load([str(path) for path in files])).get(Stall)
    return Answer(seed, hang, stall)


def table(answers: Iterable[Answer]) -> str:
    """Per kind: how many, right, exactly the culprits named, undecidable from the dumps left, wrong, harmful."""
    kinds: dict[str, list[Answer]] = defaultdict(list)
    for one in answers:
        kinds[one.hang.kind].append(one)
    rows = [f"{'kind':12}{'hangs':>7}{'right':>7}{'named':>7}{'undecidable':>13}{'wrong':>7}{'harmful':>9}"]
    rows += [_row(kind, kinds[kind]) for kind in sorted(kinds)]
    return "\n".join([*rows, _row("all", [one for found in kinds.values() for one in found])])


def _row(name: str, answers: Sequence[Answer]) -> str:
    right = sum(one.right for one in answers)
    named = sum(one.named == one.hang.culprits for one in answers)
    open_ones = sum(one.hang.undecidable for one in answers)
    wrong, harmful = len(answers) - right, sum(one.harmful for one in answers)
    return f"{name:12}{len(answers):>7}{right:>7}{named:>7}{open_ones:>13}{wrong:>7}{harmful:>9}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first hang")
    parser.add_argument("--kind")
    parser.add_argument("--missing", type=float, default=0.1, help="share of dumps that are missing")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.seed, chosen.seed + chosen.count)
    answers = [answer(seed, kind=chosen.kind, missing=chosen.missing) for seed in seeds]
    print(table(answers))
    for one in answers:
        if not one.right:
            print(_explained(one))
    right = sum(one.right for one in answers)
    harmful = sum(one.harmful for one in answers)
    print(f"{right / len(answers):.1%} right, {harmful} harmful")
    return 0 if right >= LEAST_RIGHT * len(answers) and not harmful else 1


def _explained(one: Answer) -> str:
    hang, stall = one.hang, one.stall
    said = "nothing" if stall is None else f"{stall.verdict} {stall.culprits} ({stall.confidence}): {stall.why}"
    wanted = f"{hang.culprits} of {hang.possible}" if hang.undecidable else str(hang.culprits)
    job = f"{hang.layout.kind} {hang.layout.world} ranks, missing {hang.missing}, dump {hang.style.version}"
    return f"  seed {one.seed} {hang.kind} {job}, ring {hang.style.ring}: expected {wanted}, said {said}"


if __name__ == "__main__":
    sys.exit(main())
