import pytest

from ddiag.rulekit import Severity
from tests.factories import GIB
from tests.rules.checking import check, evidence, findings, the_finding

OFFLOAD = {"offload": "optimizer", "offload_exposed_ms": 60.0, "exposed_ms": 60.0, "bytes_per_step": 4 * GIB}


def test_fires_with_exposed_time_bytes_and_rate() -> None:
    found = the_finding("DD1001", copies=OFFLOAD)
    assert "offloaded optimizer" in found.title
    assert "60.0 ms per step (30% of the step)" in found.title
    assert found.severity is Severity.CRITICAL
    assert evidence(found, "exposed copies").value == 60.0
    assert evidence(found, "copied").value == "4 GiB"
    assert evidence(found, "host to device").value == 50.0
    assert found.cost.ms_per_step == 60.0


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("optimizer", "offload_optimizer"), ("parameters", "CPUOffloadPolicy"), ("activations", "selective")],
)
def test_the_fix_fits_what_is_offloaded(kind: str, advice: str) -> None:
    assert advice in the_finding("DD1001", copies={**OFFLOAD, "offload": kind}).fix[0]


def test_unknown_state_gets_the_advice_for_both() -> None:
    found = the_finding("DD1001", copies={**OFFLOAD, "offload": "unknown"})
    assert "offloaded model state" in found.title
    assert len(found.fix) > 4


def test_copies_that_are_no_offload_are_quiet() -> None:
    assert findings("DD1001", copies={**OFFLOAD, "offload": ""}) == []


def test_offload_hidden_behind_compute_is_quiet() -> None:
    assert findings("DD1001", copies={**OFFLOAD, "offload_exposed_ms": 4.0}) == []


def test_unknown_rates_are_left_out() -> None:
    found = the_finding("DD1001", copies={**OFFLOAD, "h2d_gbps": None, "d2h_gbps": None, "link_busy_share": 0.4})
    assert not any(row.unit == "GB/s" for row in found.evidence)


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD1001", copies=None) == []
