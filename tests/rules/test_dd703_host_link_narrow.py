from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import check, findings, the_finding


def test_a_narrow_link_is_named_and_costs_where_copies_are_exposed() -> None:
    found = the_finding(
        "DD703", device_health={"devices": {3: {"pcie_width": 8.0}}}, copies={"exposed_ms": 20.0, "pinned": True}
    )
    assert found.title == "gpu3 on node0: the link to the host runs at x8 of x16"
    assert found.culprits.ranks == (3,)
    assert (found.severity, found.confidence) == (Severity.WARNING, Confidence.HIGH)


def test_it_is_information_where_nobody_waits_for_copies() -> None:
    found = the_finding(
        "DD703", device_health={"devices": {3: {"pcie_gen": 1.0, "pcie_width": 4.0}}}, copies={"exposed_ms": 0.1}
    )
    assert "x4 of x16, Gen1 of Gen5" in found.title
    assert found.severity is Severity.INFO


def test_all_boards_alike_may_be_built_so() -> None:
    found = the_finding("DD703", device_health={"devices": {rank: {"pcie_width": 8.0} for rank in range(8)}})
    assert found.confidence is Confidence.MEDIUM
    assert "built so" in found.doubt


def test_too_few_samples_may_have_met_it_asleep() -> None:
    assert findings("DD703", device_health={"devices": {3: {"pcie_gen": 1.0, "link_samples": 2}}}) == []


def test_what_the_driver_does_not_tell_is_not_narrow() -> None:
    unknown = {"pcie_width": None, "max_pcie_width": None, "pcie_gen": 0.0}
    assert findings("DD703", device_health={"devices": {3: unknown}}) == []


def test_a_link_at_its_best_is_quiet_and_a_trace_has_no_samples() -> None:
    assert check("DD703") == []
    assert check("DD703", device_health=None) == []
