"""Rules about hangs: exactly one stands behind each word of a stall, and each says who, where and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from ddiag._paths import rules_folder
from ddiag.model import signals_incident as words
from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events, Stall
from ddiag.rulekit import Severity, State
from ddiag.rulekit.loader import load_rules
from tests.factories import make_signals
from tests.rules.checking import evidence, findings, the_finding

RULE_OF = {
    words.UNEVEN: "DD902",
    words.DIVERGENT: "DD903",
    words.SETUP_WORK: "DD904",
    words.SINGLE_RANK_SAVE: "DD905",
    words.P2P_ORDER: "DD916",
    words.COMM_ORDER: "DD917",
    words.GENERATION: "DD918",
    words.WEIGHT_SYNC: "DD919",
    words.METRICS: "DD923",
    words.BUCKETS: "DD924",
    words.SLOW_CHECKPOINT: "DD931",
    words.COMPILE_SKEW: "DD932",
    words.SUBGROUP: "DD938",
    words.SWALLOWED: "DD940",
    words.GPU_STUCK: "DD942",
    words.DATA_PLANE: "DD960",
    words.SHORT_TIMEOUT: "DD961",
    words.UNKNOWN: "DD962",
    words.FROZEN_STORAGE: "DD962",
    words.HEARTBEAT: "DD963",
    words.NEVER_CAME: "DD964",
}


def stall(cause: str, **more: Any) -> Stall:
    """Rank 5 of 8 is waited for in an all_reduce."""
    usual: dict[str, Any] = {
        "verdict": "late",
        "culprits": (5,),
        "victims": (0, 1, 2, 3, 4, 6, 7),
        "confidence": "high",
        "group": "default_pg",
        "seq": 4190,
        "op": "all_reduce",
        "why": "rank 5 did not come",
        "timeout_ms": 60_000,
        "phase": "evaluation",
        "origin": "flight",
    }
    return Stall(**(usual | more), cause=cause)


def firing(**families: Any) -> list[str]:
    """Ids of the rules about hangs that speak."""
    signals = make_signals(**families)
    rules = [loaded.rule for loaded in load_rules(rules_folder()) if loaded.rule.id in RULE_OF.values()]
    applying = [rule.id for rule in rules if rule.applies is None or rule.applies(signals)]
    return [rule_id for rule_id in applying if findings(rule_id, **families)]


@pytest.mark.parametrize("cause", RULE_OF)
def test_exactly_one_rule_speaks_for_each_cause(cause: str) -> None:
    assert firing(stall=stall(cause)) == [RULE_OF[cause]]


@pytest.mark.parametrize("cause", ["", words.DEAD])
def test_none_speaks_of_a_job_that_runs_or_of_a_death(cause: str) -> None:
    assert firing(stall=stall(cause)) == []


@pytest.mark.parametrize(("cause", "rule"), RULE_OF.items())
def test_it_names_the_culprit_the_victims_and_the_place(cause: str, rule: str) -> None:
    found = the_finding(rule, stall=stall(cause))
    assert (found.culprits.ranks, len(found.victims)) == ((5,), 7)
    assert (found.severity, found.state) == (Severity.CRITICAL, State.STALLED)
    assert evidence(found, "waited for in").value == "all_reduce #4190 of default_pg"
    assert found.fix
    assert found.verify


def test_where_the_evidence_does_not_decide_no_rank_is_named() -> None:
    open_question = stall(
        words.UNKNOWN, verdict="undecided", culprits=(), candidates=(2, 5), settle="the dump of rank 2"
    )
    found = the_finding("DD962", stall=open_question)
    assert found.culprits.ranks == ()
    assert evidence(found, "could be").value == "ranks 2 and 5"
    assert "rank 2" in found.doubt


def test_a_skipped_step_is_left_to_the_rule_that_saw_the_message() -> None:
    skipped = stall(words.SKIPPED_STEP)
    seen = Events((Event("trainer.nan_skip", {}, 5),))
    assert findings("DD903", stall=skipped)
    assert not findings("DD903", stall=skipped, events=seen)


def test_an_error_of_ddp_speaks_without_any_stall() -> None:
    error = "Expected to have finished reduction in the prior iteration."
    message = f"{error} Parameter indices which did not receive grad for rank 3: 4"
    events = Events((Event("python.exception", {"type": "RuntimeError", "message": message}, 1, text=message),))
    assert the_finding("DD924", events=events).culprits.ranks == (3,)


def test_an_error_of_ddp_on_all_ranks_blames_none() -> None:
    text = "Expected to mark a variable ready only once."
    errors = tuple(Event("python.exception", {"message": text}, rank, text=text) for rank in range(4))
    assert the_finding("DD924", events=Events(errors)).culprits.ranks == ()
