from ddiag.rulekit import Severity
from tests.factories import budget_table
from tests.rules.checking import evidence, findings, the_finding


def test_names_the_steps_left_out_and_how_slow_they_were() -> None:
    found = the_finding("DD206", step_budget={"warmup": 2})
    assert found.severity is Severity.INFO
    assert "steps 0, 1 took 5.0 times" in found.title
    assert evidence(found, "warm-up step").value == 1000.0
    assert evidence(found, "steady step").value == 200.0
    assert found.cost.ms_per_step is None


def test_one_step_is_told_in_the_singular() -> None:
    found = the_finding("DD206", step_budget={"warmup": 1})
    assert "step 0 took 5.0 times as long as a steady step and was left out" in found.title


def test_nothing_left_out_is_quiet() -> None:
    assert findings("DD206") == []


def test_first_steps_as_fast_as_the_others_are_quiet() -> None:
    early = budget_table(steps=7).with_columns(steady=budget_table(steps=7)["step"] >= 2)
    assert findings("DD206", step_budget={"table": early}) == []


def test_a_slow_last_step_that_was_cut_off_is_no_warm_up() -> None:
    table = budget_table(steps=5, warmup=1)
    last_is_slow = table.with_columns(step=4 - table["step"])
    assert findings("DD206", step_budget={"table": last_is_slow}) == []
