"""Start a rule: a file that keeps the contract, and tests that fail until the rule is written.

python -m tools.new_rule DD107 slow_storage --root-cause RC-101 --needs InputWait
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from ddiag._paths import rules_folder
from ddiag.model.signals import FAMILIES
from ddiag.reporters.rule_table import FAMILY_TITLES
from ddiag.rulekit.loader import load_rules

RULE = Template('''\
"""<The cause in one sentence.>

## Meaning
<What is going on, for someone who has never met it.>

## Impact
<What it costs, and whom.>

## Diagnosis
<Which figures show it, and what looks alike but is not it.>

## Mitigation
<What to change, with exact option names.>
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import $imports
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View, severity_for, step_cost

RULE = Rule(
    id="$id",
    root_cause="$root_cause",
    needs=($needs,),
    capture="<how to record the evidence it needs>",
    symptom="<what the user sees, in the user's words>",
    evidence="<what decides it>",
)


@dataclass(frozen=True)
class Limits:
    warning_share: float = 0.05
    """<Share of the step from which it matters.>"""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget = signals[JobFacts], signals[StepBudget]
    lost_ms = budget.mean("idle_ms")  # <the time this cause costs>
    share = lost_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if share < limits.warning_share:
        return
    yield Finding(
        title=f"<the cause, its culprit and its key number: {share:.0%}>",
        severity=severity_for(share, warning=limits.warning_share, critical=limits.critical_share),
        confidence=Confidence.LOW,
        evidence=(Evidence("<figure>", share, "of step", limits.warning_share, "<where from>"),),
        fix=("<option=value>",),
        verify="<command or observation that shows whether the fix worked>",
        cost=step_cost(lost_ms, budget, facts),
    )
''')
TEST = Template('''\
"""$id: <the cause in one sentence.>"""

from __future__ import annotations

import pytest

from tests.rules.checking import check


def test_it_fires_on_its_case() -> None:
    pytest.fail("write the case: findings('$id', input_wait={...}) and what its title, cost and culprits must be")


def test_it_stays_quiet_on_what_looks_alike() -> None:
    pytest.fail("write the near-misses")


def test_a_healthy_job_has_none_of_it() -> None:
    assert check("$id") == []
''')


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.new_rule", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("id", help="DDnnn; the family is all but the last two digits")
    parser.add_argument("name", help="what it is, in snake case")
    parser.add_argument("--root-cause", required=True, metavar="RC-nn")
    parser.add_argument("--needs", default="", metavar="A,B", help="signal families besides JobFacts and StepBudget")
    parser.add_argument("--rules", type=Path, default=rules_folder(), help="where rule files live")
    parser.add_argument("--tests", type=Path, default=Path("tests/rules"), help="where their tests live")
    options = parser.parse_args(arguments)
    problem = _problem(options)
    if problem:
        parser.error(problem)
    for path, text in _files(options):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


def _problem(options: argparse.Namespace) -> str:
    """Why this rule cannot be started; empty when it can."""
    if not re.fullmatch(r"DD\d{3,4}", options.id) or not re.fullmatch(r"[a-z][a-z0-9_]*", options.name):
        return "write the id as DD107 and the name in snake case"
    if f"dd{options.id[2:-2]}" not in FAMILY_TITLES:
        return f"{options.id}: no such family; there are {', '.join(FAMILY_TITLES)}"
    if not re.fullmatch(r"RC-\d{2,4}", options.root_cause):
        return "write the root cause as RC-101"
    unknown = set(filter(None, options.needs.split(","))) - {family.__name__ for family in FAMILIES}
    if unknown:
        return f"no such signal family: {', '.join(sorted(unknown))}"
    taken = {rule.rule.id: rule.path for rule in load_rules(options.rules)}
    return f"{options.id} is taken by {taken[options.id]}" if options.id in taken else ""


def _files(options: argparse.Namespace) -> list[tuple[Path, str]]:
    needs = ["JobFacts", "StepBudget", *filter(None, options.needs.split(","))]
    fields = {
        "id": options.id,
        "root_cause": options.root_cause,
        "needs": ", ".join(needs),
        "imports": ", ".join(sorted(needs)),
    }
    stem = f"{options.id.lower()}_{options.name}"
    return [
        (_family_folder(options.rules, options.id) / f"{stem}.py", RULE.substitute(fields)),
        (options.tests / f"test_{stem}.py", TEST.substitute(fields)),
    ]


def _family_folder(rules: Path, rule_id: str) -> Path:
    """The family's folder: the one there is, else a new one named after its title."""
    prefix = f"dd{rule_id[2:-2]}"
    existing = sorted(rules.glob(f"{prefix}_*"))
    title = FAMILY_TITLES[prefix].split()[0].strip(",").lower()
    return existing[0] if existing else rules / f"{prefix}_{title}"


if __name__ == "__main__":
    sys.exit(main())
