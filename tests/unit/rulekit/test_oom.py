"""How grave a failed request for memory is."""

from __future__ import annotations

import pytest

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Death, Deaths, Events
from ddiag.rulekit.finding import State
from ddiag.rulekit.oom import NEED, gravity, of_reason

CUT = Event("cuda.oom", {"tried_bytes": 20 << 20, "capacity_bytes": 79 << 30, "free_bytes": 1 << 20}, rank=1)


def test_a_job_that_went_on_is_not_said_to_have_crashed() -> None:
    assert gravity(of_reason(Events((CUT,)), NEED), None)[1] is State.DEGRADED


@pytest.mark.parametrize("cause", ["cuda_oom", "exception"])
def test_a_process_that_died_of_it_crashed(cause: str) -> None:
    dead = Deaths((Death(cause, 1, None, None, "out of memory", None, (CUT,)),), ())
    assert gravity(of_reason(Events((CUT,)), NEED), dead)[1] is State.CRASHED


def test_a_message_cut_short_accuses_no_other_process() -> None:
    assert [one.foreign for one in of_reason(Events((CUT,)), NEED)] == [0]
