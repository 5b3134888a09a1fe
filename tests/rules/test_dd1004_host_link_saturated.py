from ddiag.rulekit import Abstain, Confidence, Severity
from tests.factories import GIB
from tests.rules.checking import check, evidence, findings, the_finding

FULL = {"link_busy_share": 0.9, "exposed_ms": 30.0, "bytes_per_step": 8 * GIB, "offload": "parameters"}


def test_fires_with_the_busy_share_and_the_rate() -> None:
    found = the_finding("DD1004", copies=FULL)
    assert "host link busy for 90% of the step at 50.0 GB/s; 30.0 ms per step" in found.title
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.HIGH
    assert evidence(found, "host link busy").limit == 0.7
    assert "offload less" in found.fix[0]


def test_a_slow_full_link_is_suspect_itself() -> None:
    found = the_finding("DD1004", copies={**FULL, "h2d_gbps": 7.1, "d2h_gbps": 7.0})
    assert "pcie.link.width.current" in found.fix[0]
    assert found.confidence is Confidence.MEDIUM


def test_a_busy_link_that_compute_hides_is_quiet() -> None:
    assert findings("DD1004", copies={**FULL, "exposed_ms": 5.0}) == []


def test_exposed_copies_on_a_mostly_idle_link_are_another_cause() -> None:
    assert findings("DD1004", copies={**FULL, "link_busy_share": 0.4}) == []


def test_unknown_rates_are_left_out() -> None:
    found = the_finding("DD1004", copies={**FULL, "h2d_gbps": None, "d2h_gbps": None})
    assert "GB/s" not in found.title
    assert not any(row.unit == "GB/s" for row in found.evidence)


def test_a_gen_3_link_at_its_usual_rate_is_not_suspect() -> None:
    found = the_finding("DD1004", copies={**FULL, "h2d_gbps": 12.0, "d2h_gbps": 11.0})
    assert not any("pcie.link" in step for step in found.fix)
    assert found.confidence is Confidence.HIGH


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD1004", copies=None) == []


COUNTED = {"to_device_gbps": 47.0, "from_device_gbps": 20.0, "util": 40.0}
"""Of a Gen5 x16 link, which carries 63 GB/s and reaches 50."""
RECORDED = {"step_budget": {"on_device": False}, "copies": None}


def counted(*ranks: int, **columns: object) -> dict[str, object]:
    return {"devices": {rank: {**COUNTED, **columns} for rank in ranks}}


def test_a_full_link_is_counted_by_the_device_itself() -> None:
    found = the_finding("DD1004", **RECORDED, host_link=counted(*range(8)))
    assert "the host link of gpu0, gpu1, gpu2, gpu3 is full: 47 GB/s to the device all the time, 93%" in found.title
    assert "the device computes 40%" in found.title
    assert (found.severity, found.confidence) == (Severity.CRITICAL, Confidence.MEDIUM)
    assert found.culprits.ranks == ()
    assert evidence(found, "such a link carries").source == "Gen5 x16, 80% of it is reached"


def test_one_devices_link_is_named_with_its_rank() -> None:
    found = the_finding("DD1004", **RECORDED, host_link=counted(5))
    assert (found.culprits.ranks, found.culprits.devices, found.culprits.hosts) == ((5,), ("gpu1",), ("node1",))


def test_recorded_offloading_of_as_many_bytes_explains_it() -> None:
    """67 GB/s in steps of 200 ms are 13.4 GB."""
    copies = {"bytes_per_step": 9 * GIB, "offload": "optimizer"}
    found = the_finding("DD1004", **{**RECORDED, "copies": copies}, host_link=counted(*range(8)))
    assert found.confidence is Confidence.HIGH
    assert "offload less" in found.fix[0]


def test_without_nvlink_collectives_may_fill_it() -> None:
    (said,) = check("DD1004", **RECORDED, host_link=counted(*range(8), nvlink_gbps=None))
    assert isinstance(said, Abstain)
    assert "does not tell copies from collectives" in said.reason
    explained = {"bytes_per_step": 9 * GIB, "offload": "optimizer"}
    link = counted(*range(8), nvlink_gbps=None)
    assert findings("DD1004", **{**RECORDED, "copies": explained}, host_link=link)
    assert findings("DD1004", **RECORDED, host_link=counted(0, nvlink_gbps=None), job_facts={"ranks": (0,)})


def test_a_full_link_behind_enough_compute_costs_nothing() -> None:
    assert check("DD1004", **RECORDED, host_link=counted(*range(8), util=92.0)) == []


def test_half_a_link_and_few_samples_are_quiet() -> None:
    assert check("DD1004", **RECORDED, host_link=counted(*range(8), to_device_gbps=25.0)) == []
    assert check("DD1004", **RECORDED, host_link=counted(*range(8), samples=2)) == []


def test_where_a_trace_shows_the_copies_it_leads() -> None:
    assert check("DD1004", host_link=counted(*range(8))) == []


def test_neither_copies_nor_counters_is_an_abstention() -> None:
    (said,) = check("DD1004", copies=None, host_link=None, kernel_mix=None)
    assert isinstance(said, Abstain)


def test_host_times_of_copies_are_no_counters() -> None:
    found = the_finding("DD1004", copies=FULL, host_link=None, step_budget={"on_device": False})
    assert found.confidence is Confidence.MEDIUM
    assert "times are those of the host" in found.doubt
