"""Make a case of ``fixtures/cases`` from a synthetic scenario: ``python -m tools.make_case SCENARIO FOLDER``.

Writes small gzipped traces (``input.rankN.json.gz``) and ``expected.json`` with the root cause of the scenario's first
rule. Logs are written by hand: they are text, and their wording is the point.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddiag.api import rules_for
from tools.synth import SCENARIOS, generate


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--ranks", type=int)
    chosen = parser.parse_args(arguments)
    make(chosen.scenario, chosen.folder, chosen.steps, chosen.ranks)
    return 0


def make(name: str, folder: Path, steps: int, ranks: int | None) -> None:
    """Write the case."""
    scenario = SCENARIOS[name]
    causes = {rule.rule.id: rule.rule.root_cause for rule in rules_for()}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        generate(replace(scenario.job, steps=steps, ranks=ranks or scenario.job.ranks), Path(place))
        for number, path in enumerate(sorted(Path(place).rglob("*.json*"))):
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            (folder / f"input.rank{number}.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    expected = {
        "root_causes": [causes[rule] for rule in scenario.rules[:1]],
        "ranks": list(scenario.ranks),
        "hosts": [],
        "healthy": not scenario.rules and not scenario.undecidable,
        "abstain_on_rank": scenario.undecidable,
    }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
