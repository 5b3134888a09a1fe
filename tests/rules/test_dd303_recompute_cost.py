import pytest

from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

ROOM = {"ms_per_step": 50.0, "memory_share": 0.45}


def test_questions_checkpointing_when_memory_has_room() -> None:
    found = the_finding("DD303", recompute=ROOM)
    assert "50.0 ms per step (25% of the step) while 55% of device memory is never used" in found.title
    assert found.severity is Severity.WARNING
    assert evidence(found, "peak memory").value == 0.45
    assert found.cost.ms_per_step == 50.0


def test_is_silent_when_the_memory_is_needed() -> None:
    assert findings("DD303", recompute={**ROOM, "memory_share": 0.8}) == []


def test_only_states_the_price_when_memory_was_not_recorded() -> None:
    found = the_finding("DD303", recompute={**ROOM, "memory_share": None}, memory=None)
    assert found.severity is Severity.INFO
    assert found.confidence is Confidence.LOW
    assert "never used" not in found.title
    assert "profile_memory=True" in found.fix[0]


@pytest.mark.parametrize(("reserved", "speaks"), [(0.4, True), (0.9, False)])
def test_uses_the_memory_family_when_recompute_itself_does_not_know(reserved: float, speaks: bool) -> None:
    memory = {"reserved": dict.fromkeys(range(8), reserved), "allocated": dict.fromkeys(range(8), reserved - 0.05)}
    found = findings("DD303", recompute={**ROOM, "memory_share": None}, memory=memory)
    assert bool(found) is speaks


def test_a_small_price_is_quiet() -> None:
    assert findings("DD303", recompute={**ROOM, "ms_per_step": 9.0}) == []


def test_nothing_to_see_in_recorded_kernels_is_no_abstention() -> None:
    assert check("DD303", recompute=None) == []
