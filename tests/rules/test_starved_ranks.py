"""A rank that is late for want of a CPU is told from one that has more work, by its CPU time."""

from typing import Any

import pytest

from ddiag.rulekit import Abstain
from tests.rules.checking import check, the_finding

CROWDED = {"runnable_per_cpu": 3.0, "waiting_share": 0.6}
RULES = {"DD501": {"cause": "compute", "compute_ms": 30.0}, "DD506": {"cause": "unknown", "compute_ms": 0.0}}


def said(rule: str, **load: Any) -> Any:
    late = {"late": {"rank": 3, **RULES[rule]}, "wait_ms_per_step": 30.0}
    (one,) = check(rule, job_facts={"device_kind": "cpu"}, late_ranks=late, host_load={**CROWDED, **load})
    return one


@pytest.mark.parametrize("rule", RULES)
def test_longer_without_more_cpu_time_is_no_work(rule: str) -> None:
    found = said(rule, cpu_ms={3: 181.0})
    assert isinstance(found, Abstain)
    assert "rank 3 arrives last, but uses only 1.0 ms more CPU time per step" in found.reason


@pytest.mark.parametrize("rule", RULES)
def test_longer_with_the_cpu_time_to_show_for_it_is_work(rule: str) -> None:
    assert said(rule, cpu_ms={3: 208.0}).culprits.ranks == (3,)


def test_on_a_quiet_host_cpu_time_is_not_asked_for() -> None:
    late = {"late": {"rank": 3, **RULES["DD501"]}, "wait_ms_per_step": 30.0}
    quiet = {"runnable_per_cpu": 0.9, "waiting_share": 0.1}
    assert the_finding("DD501", job_facts={"device_kind": "cpu"}, late_ranks=late, host_load=quiet).culprits.ranks == (
        3,
    )


def test_a_device_computes_whatever_the_cpus_do() -> None:
    late = {"late": {"rank": 3, **RULES["DD501"]}, "wait_ms_per_step": 30.0}
    assert the_finding("DD501", late_ranks=late, host_load=CROWDED).culprits.ranks == (3,)


@pytest.mark.parametrize(("own_ms", "works"), [(70.0, True), (58.0, False)])
def test_work_that_a_crowded_cpu_stretches_is_work_where_the_peers_is_stretched_alike(
    own_ms: float, works: bool
) -> None:
    """The peers compute for over 160 ms with 50 ms of CPU time; 8 ms more than that may be chance."""
    found = said("DD501", cpu_ms={**dict.fromkeys(range(8), 50.0), 3: own_ms})
    assert isinstance(found, Abstain) is not works
