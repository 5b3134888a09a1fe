"""Runs rules over signals: who may judge, what they found, who had to abstain and why."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ddiag.errors import RuleDefect
from ddiag.model.signals import Signals
from ddiag.rulekit.finding import Abstain, Abstention, Cost, Evidence, Finding
from ddiag.rulekit.rule import LoadedRule, View


@dataclass(frozen=True)
class Outcome:
    """What all rules said."""

    findings: tuple[Finding, ...] = ()
    abstentions: tuple[Abstention, ...] = ()
    checked: tuple[str, ...] = ()
    """Ids of the rules that had what they need and decided."""
    failures: tuple[str, ...] = ()
    """One line for each rule of a ``--rules`` folder that raised."""


class _BadFinding(Exception):
    """A finding that breaks the contract."""


def run_rules(rules: Sequence[LoadedRule], signals: Signals) -> Outcome:
    """Run every rule that applies and has its needs.

    A built-in rule that raises is a defect of ddiag (RuleDefect). A user's rule that raises costs only itself: a line
    in ``failures`` names it, and all others still run.
    """
    outcome = Outcome()
    for rule in rules:
        try:
            outcome = _merge(outcome, _run(rule, signals))
        except (Exception, SystemExit) as error:  # the one door for whatever a rule may raise; nothing is swallowed
            message = f"rule {rule.rule.id} ({rule.path}) failed: {_in_words(error)}"
            if rule.built_in:
                raise RuleDefect(message) from error
            outcome = dataclasses.replace(outcome, failures=(*outcome.failures, message))
    return outcome


def _in_words(error: BaseException) -> str:
    return str(error) if isinstance(error, _BadFinding) else f"{type(error).__name__}: {error}"


def _merge(a: Outcome, b: Outcome) -> Outcome:
    return Outcome(
        findings=a.findings + b.findings,
        abstentions=a.abstentions + b.abstentions,
        checked=a.checked + b.checked,
        failures=a.failures + b.failures,
    )


def _run(loaded: LoadedRule, signals: Signals) -> Outcome:
    rule = loaded.rule
    if rule.applies is not None and not rule.applies(signals):
        return Outcome()
    missing = tuple(family_words(family) for family in rule.needs if not signals.has(family))
    if missing:
        return Outcome(abstentions=(Abstention(rule.id, missing, rule.capture, loaded.title),))
    findings, abstentions = [], []
    for said in loaded.check(View(signals, rule), loaded.limits):
        if isinstance(said, Finding):
            findings.append(_checked(said, loaded))
        elif isinstance(said, Abstain):
            abstentions.append(Abstention(rule.id, (said.reason,), said.capture, loaded.title))
        else:
            raise _BadFinding(f"it yielded a {type(said).__name__} instead of a Finding or Abstain")
    decided = findings or not abstentions
    return Outcome(tuple(findings), tuple(abstentions), (rule.id,) if decided else ())


def family_words(family: type) -> str:
    """StepBudget -> 'step budget': how a missing signal is called in an abstention."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", family.__name__).lower()


def _checked(finding: Finding, loaded: LoadedRule) -> Finding:
    """The finding with its identity filled in; an unusable one is the rule's fault and said so."""
    for name in ("title", "evidence", "fix", "verify"):
        if not getattr(finding, name):
            raise _BadFinding(f"its finding has no {name}")
    cost = finding.cost
    return dataclasses.replace(
        finding,
        rule=loaded.rule.id,
        root_cause=loaded.rule.root_cause,
        evidence=tuple(_plain_evidence(item) for item in finding.evidence),
        cost=Cost(
            ms_per_step=_plain(cost.ms_per_step, "ms_per_step"),
            step_share=_plain(cost.step_share, "step_share"),
            gpu_hours=_plain(cost.gpu_hours, "gpu_hours"),
        ),
        references=finding.references or loaded.rule.references,
    )


def _plain_evidence(item: Evidence) -> Evidence:
    return dataclasses.replace(
        item, value=_plain(item.value, item.label), limit=_plain(item.limit, f"limit of {item.label}")
    )


V = TypeVar("V")


def _plain(value: V, what: str) -> V:
    """*value* as plain Python (numpy scalars unpacked); NaN and infinity are no evidence."""
    unpack = getattr(value, "item", None)
    plain: V = unpack() if callable(unpack) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        raise _BadFinding(f"{what} is {plain}")
    if plain is not None and not isinstance(plain, (bool, int, float, str)):
        raise _BadFinding(f"{what} is a {type(plain).__name__}, not a number or text")
    return plain
