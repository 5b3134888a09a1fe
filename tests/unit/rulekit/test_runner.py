from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ddiag.errors import RuleDefect
from ddiag.model.signals import InputWait, JobFacts, Memory
from ddiag.rulekit import Abstain, Cost, Evidence, Finding, View
from ddiag.rulekit.runner import run_rules
from tests.factories import make_signals
from tests.unit.rulekit.making import finding, loaded


def yielding(*said: Any) -> Any:
    def check(signals: View, limits: Any) -> Iterator[Finding | Abstain]:
        yield from said

    return check


def test_the_engine_fills_in_who_found_it() -> None:
    rule = loaded(yielding(finding(rule="", root_cause="")), references=("doc",))
    (found,) = run_rules([rule], make_signals()).findings
    assert (found.rule, found.root_cause, found.references) == ("DD101", "RC-43", ("doc",))


def test_a_rule_without_its_evidence_abstains_and_says_how_to_get_it() -> None:
    rule = loaded(yielding(finding()), needs=(JobFacts, InputWait), capture="record the loader")
    outcome = run_rules([rule], make_signals(input_wait=None))
    (abstention,) = outcome.abstentions
    assert (abstention.rule, abstention.needs, abstention.capture) == ("DD101", ("input wait",), "record the loader")
    assert not outcome.findings
    assert not outcome.checked


def test_a_rule_without_a_subject_is_silent_not_abstaining() -> None:
    rule = loaded(yielding(finding()), needs=(Memory,), applies=lambda signals: False)
    outcome = run_rules([rule], make_signals(memory=None))
    assert (outcome.findings, outcome.abstentions, outcome.checked) == ((), (), ())


def test_a_rule_that_cannot_decide_abstains_in_its_own_words() -> None:
    outcome = run_rules([loaded(yielding(Abstain("one rank only", "profile all ranks")))], make_signals())
    (abstention,) = outcome.abstentions
    assert (abstention.needs, abstention.capture) == (("one rank only",), "profile all ranks")
    assert not outcome.checked


def test_a_quiet_rule_counts_as_checked() -> None:
    assert run_rules([loaded()], make_signals()).checked == ("DD101",)


def test_a_rule_sees_only_what_it_declared() -> None:
    def peek(signals: View, limits: Any) -> Iterator[Finding | Abstain]:
        signals.get(InputWait)
        yield from ()

    with pytest.raises(RuleDefect, match="reads InputWait without declaring it"):
        run_rules([loaded(peek)], make_signals())


def broken(signals: View, limits: Any) -> Iterator[Finding | Abstain]:
    yield finding()
    raise KeyError("step")


def test_a_built_in_rule_that_raises_is_loud() -> None:
    with pytest.raises(RuleDefect, match=r"DD101 \(rules/dd1_input/x.py\) failed: KeyError: 'step'"):
        run_rules([loaded(broken)], make_signals())


def test_a_users_rule_that_raises_costs_only_itself() -> None:
    mine = loaded(broken, built_in=False, id="ACME101")
    other = loaded(yielding(finding()), id="DD102")
    outcome = run_rules([mine, other], make_signals())
    assert [found.rule for found in outcome.findings] == ["DD102"]
    assert outcome.failures == ("rule ACME101 (rules/dd1_input/x.py) failed: KeyError: 'step'",)


def test_a_users_rule_cannot_end_the_program() -> None:
    def leave(view: View, limits: Any) -> Iterator[Finding | Abstain]:
        raise SystemExit(7)
        yield

    (failure,) = run_rules([loaded(leave, built_in=False)], make_signals()).failures
    assert "SystemExit: 7" in failure


def test_a_failure_to_say_whether_it_applies_is_the_rules_too() -> None:
    mine = loaded(built_in=False, applies=lambda signals: 1 / 0 > 0)
    assert "ZeroDivisionError" in run_rules([mine], make_signals()).failures[0]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (finding(evidence=()), "has no evidence"),
        (finding(fix=()), "has no fix"),
        (finding(verify=""), "has no verify"),
        (finding(title=""), "has no title"),
        (finding(evidence=(Evidence("busbw", float("nan")),)), "busbw is nan"),
        (finding(evidence=(Evidence("busbw", 1.0, limit=float("inf")),)), "limit of busbw is inf"),
        (finding(evidence=(Evidence("busbw", [1.0]),)), "busbw is a list"),  # type: ignore[arg-type]
        (finding(cost=Cost(float("nan"))), "ms_per_step is nan"),
        ("a finding", "yielded a str"),
    ],
)
def test_an_unusable_finding_is_the_rules_fault(bad: object, words: str) -> None:
    with pytest.raises(RuleDefect, match=words):
        run_rules([loaded(yielding(bad))], make_signals())


def test_numpy_numbers_become_plain_ones() -> None:
    numbers = finding(evidence=(Evidence("n", np.int64(3), limit=np.float64(0.5)),), cost=Cost(np.float64(2.0)))
    (found,) = run_rules([loaded(yielding(numbers))], make_signals()).findings
    assert type(found.evidence[0].value) is int
    assert type(found.evidence[0].limit) is float
    assert type(found.cost.ms_per_step) is float
