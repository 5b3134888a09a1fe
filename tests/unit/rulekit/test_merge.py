from __future__ import annotations

from typing import Any

import pytest

from ddiag.rulekit import Confidence, Cost, Culprits, Evidence, Finding, LoadedRule, Role, Severity
from ddiag.rulekit.merge import arrange
from tests.unit.rulekit.making import finding, loaded


def rules(**explained_by: tuple[str, ...]) -> list[LoadedRule]:
    return [loaded(id=f"DD{number}", explained_by=explained_by.get(f"DD{number}", ())) for number in range(101, 110)]


def ids(findings: tuple[Finding, ...]) -> list[str]:
    return [found.rule for found in findings]


def test_one_cause_and_culprit_seen_twice_is_one_finding_with_all_evidence() -> None:
    a = finding("DD101", ranks=(3,), ms=20.0, confidence=Confidence.MEDIUM, why="a", victims=(0,))
    b = finding("DD102", ranks=(3,), ms=15.0, why="b", victims=(1,), culprits=Culprits(ranks=(3,), hosts=("n",)))
    (both,) = arrange([b, a], rules())
    assert both.rule == "DD101"
    assert both.also_seen_by == ("DD102",)
    assert [item.label for item in both.evidence] == ["figure of DD101", "figure of DD102"]
    assert both.fix == ("fix of DD101", "fix of DD102")
    assert both.cost == a.cost  # not the sum: both measure the same loss
    assert both.confidence is Confidence.HIGH
    assert (both.culprits.hosts, both.victims, both.why) == (("n",), (0, 1), "a; b")


def test_of_two_as_urgent_the_special_rule_leads() -> None:
    """DD101 sees that input stalls, DD103 sees why; their costs differ by rounding only."""
    (both,) = arrange([finding("DD101", ms=20.0), finding("DD103", ms=19.9)], rules())
    assert (both.rule, both.also_seen_by) == ("DD103", ("DD101",))
    (both,) = arrange([finding("DD101", ms=20.0), finding("DD103", ms=15.0)], rules())
    assert both.rule == "DD101"


def test_the_same_figure_is_shown_once_and_with_its_limit() -> None:
    a = finding("DD101", ms=20.0, evidence=(Evidence("stall", 5.0, "ms"),))
    b = finding("DD102", evidence=(Evidence("stall", 5.0, "ms", 2.0), Evidence("stall", 6.0, "ms")))
    (both,) = arrange([a, b], rules())
    assert [(item.value, item.limit) for item in both.evidence] == [(5.0, 2.0), (6.0, None)]


@pytest.mark.parametrize(
    "other",
    [
        finding("DD102", ranks=(4,)),
        finding("DD102", ranks=(3, 4)),
        finding("DD102"),
        finding("DD102", ranks=(3,), root_cause="RC-44"),
        finding("DD102", culprits=Culprits(ranks=(3,), groups=("dp",))),
        finding("DD102", culprits=Culprits(ranks=(3,), modules=("layer.2",))),
        finding("DD101", ranks=(3,)),
    ],
)
def test_another_cause_culprit_or_the_same_rule_stays_apart(other: Finding) -> None:
    mine = finding("DD101", culprits=Culprits(ranks=(3,), modules=("layer.1",)))
    assert len(arrange([mine, other], rules())) == 2


def test_hosts_tell_apart_what_names_no_rank() -> None:
    on = [finding(rule, culprits=Culprits(hosts=(host,))) for rule, host in (("DD101", "a"), ("DD102", "b"))]
    assert len(arrange(on, rules())) == 2


def test_causes_come_by_severity_then_cost_then_confidence() -> None:
    found = [
        finding("DD101", ms=50.0, severity=Severity.INFO, root_cause="RC-01"),
        finding("DD102", ms=5.0, root_cause="RC-02"),
        finding("DD103", ms=9.0, root_cause="RC-03"),
        finding("DD104", ms=1.0, severity=Severity.CRITICAL, root_cause="RC-04"),
        finding("DD105", ms=5.0, confidence=Confidence.LOW, root_cause="RC-05"),
        finding("DD106", ms=None, root_cause="RC-06"),
    ]
    assert ids(arrange(found, rules())) == ["DD104", "DD103", "DD102", "DD105", "DD106", "DD101"]
    assert arrange(found, rules()) == arrange(found[::-1], rules())


def test_a_consequence_stands_under_its_cause() -> None:
    found = [
        finding("DD102", ms=30.0, root_cause="RC-02"),
        finding("DD103", ms=25.0, root_cause="RC-03"),
        finding("DD101", ms=20.0, root_cause="RC-01"),
    ]
    arranged = arrange(found, rules(DD102=("DD101",)))
    assert ids(arranged) == ["DD103", "DD101", "DD102"]
    assert (arranged[2].role, arranged[2].explained_by) == (Role.CONSEQUENCE, "DD101")
    assert {f.role for f in arranged[:2]} == {Role.CAUSE}


def test_a_cause_is_as_urgent_as_the_worst_it_explains() -> None:
    found = [
        finding("DD101", ms=20.0, root_cause="RC-01"),
        finding("DD102", ms=30.0, severity=Severity.CRITICAL, root_cause="RC-02"),
        finding("DD103", ms=25.0, root_cause="RC-03"),
    ]
    assert ids(arrange(found, rules(DD102=("DD101",)))) == ["DD101", "DD102", "DD103"]


def explained(cause: dict[str, Any], effect: dict[str, Any]) -> bool:
    found = [finding("DD101", root_cause="RC-01", **cause), finding("DD102", root_cause="RC-02", **effect)]
    return any(f.rule == "DD102" and f.explained_by for f in arrange(found, rules(DD102=("DD101",))))


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        ({"ranks": (3,)}, {"ranks": (3, 4)}),
        ({}, {"ranks": (3,)}),
        ({"ranks": (3,)}, {}),
        ({"ranks": (7,), "victims": (0, 1)}, {"ranks": (0,)}),
        ({"ranks": (3,)}, {"culprits": Culprits(groups=("dp",))}),
        ({"ms": 10.0}, {"ms": 20.0}),
        ({"ms": None}, {"ms": 20.0}),
        ({"severity": Severity.INFO}, {"severity": Severity.INFO}),
    ],
)
def test_a_cause_explains_what_touches_the_same_and_is_of_its_size(
    cause: dict[str, Any], effect: dict[str, Any]
) -> None:
    assert explained(cause, effect)


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        ({"ranks": (3,)}, {"ranks": (4,)}),
        ({"culprits": Culprits(groups=("tp",))}, {"culprits": Culprits(groups=("dp",))}),
        ({"ms": 9.0}, {"ms": 20.0}),
        ({"ms": 0.0}, {"ms": 0.0}),
        ({"severity": Severity.INFO}, {}),
        ({"ms": None}, {"ms": 20.0, "severity": Severity.CRITICAL}),
    ],
)
def test_a_cause_elsewhere_or_too_small_explains_nothing(cause: dict[str, Any], effect: dict[str, Any]) -> None:
    assert not explained(cause, effect)


def test_two_that_explain_each_other_leave_the_more_urgent_as_cause() -> None:
    found = [finding("DD101", ms=10.0, root_cause="RC-01"), finding("DD102", ms=12.0, root_cause="RC-02")]
    arranged = arrange(found, rules(DD101=("DD102",), DD102=("DD101",)))
    assert [(f.rule, f.explained_by) for f in arranged] == [("DD102", None), ("DD101", "DD102")]


def test_a_chain_is_told_link_by_link() -> None:
    found = [finding(f"DD10{n}", ms=10.0 + n, root_cause=f"RC-0{n}") for n in (1, 2, 3)]
    arranged = arrange(found, rules(DD103=("DD102",), DD102=("DD101",)))
    assert [(f.rule, f.explained_by) for f in arranged] == [("DD101", None), ("DD102", "DD101"), ("DD103", "DD102")]


def test_a_merged_finding_explains_and_is_explained_in_all_its_names() -> None:
    cause = [finding("DD101", ms=20.0, root_cause="RC-01"), finding("DD102", ms=19.0, root_cause="RC-01")]
    effect = [finding("DD103", ms=15.0, root_cause="RC-02"), finding("DD104", ms=14.0, root_cause="RC-02")]
    arranged = arrange([*cause, *effect], rules(DD104=("DD102",)))
    assert [(f.rule, f.explained_by) for f in arranged] == [("DD101", None), ("DD103", "DD101")]


def test_nothing_found_is_nothing_arranged() -> None:
    assert arrange([], rules()) == ()


def test_costs_known_to_one_side_only_are_kept() -> None:
    (both,) = arrange([finding("DD101", ms=None, severity=Severity.CRITICAL), finding("DD102", ms=7.0)], rules())
    assert both.cost == Cost(7.0, 0.07)


def test_of_two_that_measure_the_same_loss_the_more_special_rule_leads() -> None:
    general, special = finding("DD101", ms=20.0, why="general"), finding("DD102", ms=20.1, why="special")
    for order in ([general, special], [special, general]):
        (both,) = arrange(order, rules())
        assert (both.rule, both.also_seen_by) == ("DD102", ("DD101",))
        assert both.why.startswith("special")
