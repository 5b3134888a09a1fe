import pytest

from ddiag.rulekit import Confidence, Severity
from tests.factories import GIB
from tests.rules.checking import check, evidence, findings, the_finding


def host(**columns: object) -> dict[str, object]:
    return {"hosts": {"node1": {"limit_bytes": 100 * GIB, **columns}}}


def test_a_group_near_its_limit_is_named_with_what_the_job_holds() -> None:
    full = host(limit="cgroup", peak_bytes=95 * GIB, job_bytes=90 * GIB, largest_bytes=25 * GIB)
    found = the_finding("DD650", host_memory=full)
    assert "nearly full on node1: 95 GiB of 100 GiB, the limit of its control group" in found.title
    assert (found.severity, found.confidence) == (Severity.WARNING, Confidence.HIGH)
    assert (found.culprits.ranks, found.culprits.hosts) == ((), ("node1",))
    assert evidence(found, "in use").limit == 0.92
    assert "DataLoader workers" in found.fix[0]


@pytest.mark.parametrize(("limit", "used"), [("cgroup", 91), ("host", 94)])
def test_with_a_little_room_it_is_quiet(limit: str, used: int) -> None:
    assert findings("DD650", host_memory=host(limit=limit, peak_bytes=used * GIB)) == []


def test_a_host_that_others_fill_is_not_the_jobs_doing() -> None:
    found = the_finding("DD650", host_memory=host(peak_bytes=97 * GIB, job_bytes=20 * GIB, largest_bytes=5 * GIB))
    assert "held by others than the job" in found.title
    assert found.confidence is Confidence.MEDIUM
    assert "what else runs there" in found.fix[0]


def test_the_largest_rank_of_a_host_that_others_fill_is_not_blamed() -> None:
    found = the_finding("DD650", host_memory=host(peak_bytes=97 * GIB, job_bytes=20 * GIB, largest_bytes=15 * GIB))
    assert found.culprits.ranks == ()
    assert "held by others than the job" in found.title


def test_one_rank_that_holds_most_is_named() -> None:
    alone = host(peak_bytes=97 * GIB, job_bytes=96 * GIB, largest_rank=6, largest_bytes=70 * GIB)
    assert the_finding("DD650", host_memory=alone).culprits.ranks == (6,)


def test_swapping_meanwhile_stands_beside_it() -> None:
    swapped = host(peak_bytes=97 * GIB, swapped_bytes=3 * GIB)
    assert evidence(the_finding("DD650", host_memory=swapped), "swapped out meanwhile").value == 3 * GIB


def test_two_samples_are_a_moment() -> None:
    assert findings("DD650", host_memory=host(peak_bytes=99 * GIB, samples=2)) == []


def test_it_is_judged_for_jobs_without_devices_too_and_not_without_samples() -> None:
    cpu = {"device_kind": "cpu"}
    assert findings("DD650", host_memory={"hosts": {"node0": {"peak_bytes": 1020 * GIB}}}, job_facts=cpu)
    assert check("DD650", host_memory=None) == []
