from ddiag.rulekit import Severity
from tests.rules.checking import evidence, findings, the_finding


def test_says_how_often_saving_is_affordable_instead_of_guessing_a_cost() -> None:
    found = the_finding("DD207", python_overhead={"checkpoint_ms": 12_000.0})
    assert "stops training for 12.0 s" in found.title
    assert "every 1,200 steps" in found.title
    assert evidence(found, "affordable interval").value == 1200
    assert found.severity is Severity.INFO
    assert found.cost.ms_per_step is None
    assert "async_save" in found.fix[0]


def test_half_a_minute_is_a_warning() -> None:
    assert the_finding("DD207", python_overhead={"checkpoint_ms": 45_000.0}).severity is Severity.WARNING


def test_small_state_is_quiet() -> None:
    assert findings("DD207", python_overhead={"checkpoint_ms": 150.0}) == []


def test_a_third_of_a_second_is_worth_a_line() -> None:
    assert evidence(the_finding("DD207", python_overhead={"checkpoint_ms": 300.0}), "affordable interval").value == 30


RECORDED = {"checkpoint_ms": 300.0, "checkpoint_ms_per_step": 60.0, "checkpoint_share": 0.3, "checkpoints": 20}


def test_a_recording_knows_how_often_and_so_what_it_costs() -> None:
    found = the_finding("DD207", python_overhead=RECORDED)
    assert "checkpoints take 30% of the run: 20 saves of up to 0.3 s" in found.title
    assert found.severity is Severity.CRITICAL
    assert found.cost.ms_per_step == 60.0


def test_a_recorded_run_that_saves_seldom_is_left_in_peace() -> None:
    assert findings("DD207", python_overhead={**RECORDED, "checkpoint_share": 0.02, "checkpoint_ms": 5_000.0}) == []


def test_a_long_save_is_worth_a_warning_however_seldom() -> None:
    found = the_finding("DD207", python_overhead={**RECORDED, "checkpoint_share": 0.02, "checkpoint_ms": 45_000.0})
    assert found.severity is Severity.WARNING
