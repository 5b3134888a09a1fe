"""How often ddiag is right: ``python -m tools.score_cases FOLDER`` diagnoses every case below FOLDER.

A case is a folder with ``input*`` files (the evidence) and ``expected.json``: ``root_causes`` (any of them is right as
the primary one; empty = none), ``ranks`` and ``hosts`` (the culprits: empty = none is to blame, null = none may be
named), ``healthy`` (no finding of severity warning or above) and ``abstain_on_rank``. Exit code 1 when a case is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddiag.api import diagnose, load
from ddiag.errors import DdiagError
from ddiag.rulekit import Confidence, Finding, Severity
from ddiag.rulekit.diagnosis import Diagnosis


@dataclass(frozen=True)
class Score:
    """What was wrong with one case; nothing = right."""

    name: str
    wrong: tuple[str, ...]
    harmful: bool
    """An innocent was blamed with high confidence, or a healthy job called sick."""
    said: str


def score(case: Path) -> Score:
    """Diagnose one case and compare."""
    expected = json.loads((case / "expected.json").read_text(encoding="utf-8"))
    inputs = sorted(str(path) for path in case.iterdir() if path.name.startswith("input"))
    try:
        diagnosis = diagnose(load(inputs))
    except DdiagError as error:
        return Score(case.name, (f"not read: {error}",), harmful=False, said="")
    primary = _primary(diagnosis)
    wrong = tuple(_wrong(expected, primary))
    return Score(case.name, wrong, _harmful(expected, primary), diagnosis.verdict.headline)


def _primary(diagnosis: Diagnosis) -> Finding | None:
    first = diagnosis.findings[0] if diagnosis.findings else None
    return None if first is None or first.severity is Severity.INFO else first


def _wrong(expected: dict[str, Any], primary: Finding | None) -> Iterator[str]:
    if expected["healthy"]:
        if primary is not None:
            yield f"healthy, but {primary.rule}: {primary.title}"
        return
    if primary is None:
        if expected["root_causes"]:
            yield f"no finding, expected {' or '.join(expected['root_causes'])}"
        return
    if primary.root_cause not in expected["root_causes"]:
        yield f"{primary.root_cause} ({primary.rule}), expected {' or '.join(expected['root_causes']) or 'none'}"
    yield from _wrong_culprits(expected, primary)


def _wrong_culprits(expected: dict[str, Any], primary: Finding) -> Iterator[str]:
    named, ranks, hosts = primary.culprits, expected["ranks"], expected["hosts"]
    if ranks is None or expected["abstain_on_rank"]:
        if named.ranks or named.hosts:
            yield f"names {named.ranks or named.hosts}, although the evidence does not decide"
    elif set(named.ranks) != set(ranks):
        yield f"ranks {list(named.ranks)}, expected {ranks}"
    if hosts and not set(hosts) <= set(named.hosts):
        yield f"hosts {list(named.hosts)}, expected {hosts}"


def _harmful(expected: dict[str, Any], primary: Finding | None) -> bool:
    if primary is None:
        return False
    if expected["healthy"]:
        return True
    innocents = set(primary.culprits.ranks) - set(expected["ranks"] or ())
    return bool(innocents) and primary.confidence is Confidence.HIGH


def cases_below(folder: Path) -> list[Path]:
    """Every case folder below *folder* (or itself), in order."""
    return sorted({path.parent for path in folder.rglob("expected.json")})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="print the right ones too")
    chosen = parser.parse_args(arguments)
    scores = [score(case) for case in cases_below(chosen.folder)]
    for one in scores:
        if one.wrong or chosen.all:
            mark = "HARMFUL" if one.harmful else "wrong" if one.wrong else "right"
            print(f"{mark:8}{one.name}: {'; '.join(one.wrong) or one.said}")
    right, harmful = sum(not one.wrong for one in scores), sum(one.harmful for one in scores)
    print(f"{right} of {len(scores)} right, {harmful} harmful (innocent blamed with high confidence, or healthy job)")
    return 0 if right == len(scores) else 1


if __name__ == "__main__":
    sys.exit(main())
