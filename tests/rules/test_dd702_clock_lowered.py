from ddiag.rulekit import Severity
from tests.rules.checking import check, findings, the_finding

HOT = {"thermal_share": 0.6, "sm_mhz": 1200.0}


def test_a_hot_device_is_named_with_its_rank_and_host() -> None:
    found = the_finding("DD702", device_health={"devices": {6: HOT}})
    assert (found.culprits.ranks, found.culprits.hosts, found.culprits.devices) == ((6,), ("node1",), ("gpu2",))
    assert found.title == "gpu2 lowers its clock on node1 60% of the time: too hot, 61% of the highest"
    assert found.severity is Severity.CRITICAL


def test_a_power_brake_is_not_heat() -> None:
    brake = {"brake_share": 0.5, "sm_mhz": 1700.0}
    found = the_finding("DD702", device_health={"devices": {1: brake}})
    assert "told to by the power supply or hardware" in found.title
    assert found.severity is Severity.WARNING


def test_a_reason_that_costs_no_clock_is_information() -> None:
    mild = {"thermal_share": 0.3, "sm_mhz": 1960.0}
    assert the_finding("DD702", device_health={"devices": {1: mild}}).severity is Severity.INFO


def test_a_whole_host_is_one_finding() -> None:
    found = the_finding("DD702", device_health={"devices": dict.fromkeys(range(4), HOT)})
    assert found.title.startswith("4 devices lower their clocks on node0")


def test_seldom_or_hardly_seen_is_quiet() -> None:
    assert findings("DD702", device_health={"devices": {6: {**HOT, "thermal_share": 0.1}}}) == []
    assert findings("DD702", device_health={"devices": {6: {**HOT, "samples": 3}}}) == []


def test_a_low_clock_without_such_a_reason_is_quiet() -> None:
    assert findings("DD702", device_health={"devices": {6: {"sm_mhz": 1200.0}}}) == []


def test_what_the_driver_does_not_tell_is_not_zero() -> None:
    unknown = {"thermal_share": None, "brake_share": None, "sm_mhz": None}
    assert findings("DD702", device_health={"devices": dict.fromkeys(range(8), unknown)}) == []


def test_a_trace_has_no_samples() -> None:
    assert check("DD702", device_health=None) == []
