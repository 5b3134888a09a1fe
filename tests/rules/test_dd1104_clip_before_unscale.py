from ddiag.rulekit import Severity
from tests.rules.checking import check, findings, the_finding


def test_clipping_scaled_gradients_in_every_step_is_a_warning() -> None:
    found = the_finding("DD1104", steps=20, optimizer_step={"clipped_scaled_steps": 20})
    assert found.severity is Severity.WARNING
    assert "in 20 of 20 steps" in found.title
    assert found.fix[0].startswith("scaler.unscale_(optimizer) before")


def test_once_in_a_while_is_not_how_the_script_is_written() -> None:
    assert findings("DD1104", steps=20, optimizer_step={"clipped_scaled_steps": 3}) == []
    assert findings("DD1104", steps=1, optimizer_step={"clipped_scaled_steps": 1}) == []


def test_no_scaler_or_the_right_order_is_quiet() -> None:
    assert check("DD1104") == []
