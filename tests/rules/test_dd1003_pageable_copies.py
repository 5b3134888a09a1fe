import pytest

from ddiag.model.incident import Setting
from ddiag.model.signals_incident import Settings
from ddiag.rulekit import Abstain, Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

PAGEABLE = {"pinned": False, "exposed_ms": 20.0, "h2d_gbps": 6.0}


def test_fires_with_share_time_and_rate() -> None:
    found = the_finding("DD1003", copies=PAGEABLE)
    assert (
        "100% of host-device bytes use pageable memory: copies cost 20.0 ms per step (10% of the step)" in found.title
    )
    assert found.severity is Severity.WARNING
    assert evidence(found, "H2D, pageable").value == 6.0
    assert found.cost.ms_per_step == 20.0
    assert "pin_memory=True" in found.fix[0]


def test_pinned_copies_are_quiet_however_long() -> None:
    assert findings("DD1003", copies={**PAGEABLE, "pinned": True}) == []


def test_a_minority_of_pageable_bytes_is_quiet() -> None:
    assert findings("DD1003", copies={**PAGEABLE, "pageable_share": 0.3}) == []


def test_hidden_pageable_copies_are_quiet() -> None:
    assert findings("DD1003", copies={**PAGEABLE, "pageable_exposed_ms": 1.0}) == []


def test_abstains_when_expensive_copies_do_not_say_what_they_are() -> None:
    (said,) = check("DD1003", copies={**PAGEABLE, "pinned": None, "pageable_share": None})
    assert isinstance(said, Abstain)
    assert "20.0 ms" in said.reason


def test_cheap_copies_of_unknown_kind_are_not_worth_an_abstention() -> None:
    assert check("DD1003", copies={"pinned": None, "pageable_share": None}) == []


@pytest.mark.parametrize(("steps", "severity"), [(5, Severity.CRITICAL), (1, Severity.WARNING)])
def test_a_single_step_is_not_enough_for_the_worst_severity(steps: int, severity: Severity) -> None:
    assert the_finding("DD1003", steps=steps, copies={**PAGEABLE, "exposed_ms": 60.0}).severity is severity


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD1003", copies=None) == []


UNKNOWN = {
    "pageable_share": None,
    "pinned": None,
    "offload": "optimizer",
    "offload_exposed_ms": 20.0,
    "exposed_ms": 20.0,
}


def told(pin: str, device: str = "cpu") -> Settings:
    key = "zero_optimization.offload_optimizer"
    return Settings((Setting("ds_config", f"{key}.device", device), Setting("ds_config", f"{key}.pin_memory", pin)))


def test_what_deepspeed_was_told_not_to_pin_is_pageable() -> None:
    found = the_finding("DD1003", copies=UNKNOWN, settings=told("false"))
    assert "offload_optimizer.pin_memory is false): its copies take 20.0 ms per step (10% of the step)" in found.title
    assert (found.severity, found.confidence) == (Severity.WARNING, Confidence.MEDIUM)
    assert '"pin_memory": true' in found.fix[0]


def test_pinned_or_short_or_swapped_to_disk_or_not_offloaded_is_not() -> None:
    assert check("DD1003", copies=UNKNOWN, settings=told("true")) == []
    assert findings("DD1003", copies={**UNKNOWN, "offload_exposed_ms": 2.0}, settings=told("false")) == []
    assert findings("DD1003", copies=UNKNOWN, settings=told("false", device="nvme")) == []
    assert findings("DD1003", copies={**UNKNOWN, "offload": ""}, settings=told("false")) == []
