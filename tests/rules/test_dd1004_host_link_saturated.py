from ddiag.rulekit import Confidence, Severity
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
