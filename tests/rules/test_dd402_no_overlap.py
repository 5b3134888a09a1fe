from ddiag.model.signals_recorded import StoodStill
from ddiag.rulekit import Abstain, Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

SERIAL = {
    "collectives": {"exposed_ms": 58.0, "overlapped_ms": 2.0},
    "step_budget": {"comm_transfer_ms": 56.0, "comm_wait_ms": 2.0},
}


def test_fires_with_the_time_that_overlap_could_hide() -> None:
    found = the_finding("DD402", **SERIAL)
    assert found.severity is Severity.CRITICAL
    assert found.confidence is Confidence.HIGH
    assert evidence(found, "could be hidden").value == 56.0
    assert "3%" in found.title
    assert "28%" in found.title


def test_gain_is_limited_by_the_compute_there_is_to_hide_under() -> None:
    little = {"comm_transfer_ms": 150.0, "comm_wait_ms": 2.0, "compute_ms": 20.0}
    found = the_finding("DD402", **{**SERIAL, "step_budget": little})
    assert found.cost.ms_per_step == 20.0


def test_exposed_time_that_is_waiting_is_not_blamed_on_overlap() -> None:
    assert findings("DD402", **{**SERIAL, "step_budget": {"comm_transfer_ms": 5.0, "comm_wait_ms": 53.0}}) == []


def test_overlapping_job_is_quiet() -> None:
    assert findings("DD402", **{**SERIAL, "collectives": {"exposed_ms": 58.0, "overlapped_ms": 30.0}}) == []


def test_little_communication_is_quiet() -> None:
    assert findings("DD402", collectives={"exposed_ms": 12.0, "overlapped_ms": 0.0}) == []


def test_a_trace_of_the_host_alone_does_not_show_overlap() -> None:
    timed = {**SERIAL["collectives"], "timed_on_device": False}
    assert findings("DD402", **{**SERIAL, "collectives": timed}) == []


def recorded(transfer_ms: float, blocked_ms: float) -> dict[str, object]:
    """A recording whose calls the host timed; by the other figures nothing overlaps."""
    still = StoodStill(transfer_ms, blocked_ms)
    calls = {**SERIAL["collectives"], "timed_on_device": False, "stood_still": still}
    return {**SERIAL, "collectives": calls, "shard_units": None}


def test_a_recording_shows_it_by_what_the_training_waited_for() -> None:
    found = the_finding("DD402", **recorded(50.0, 46.0))
    assert found.cost.ms_per_step == 46.0
    assert evidence(found, "overlapped").value == 0.08
    assert "waited" in found.why


def test_a_recording_in_which_others_were_late_or_calls_ran_beside_backward_is_quiet() -> None:
    assert findings("DD402", **recorded(50.0, 30.0)) == []
    assert findings("DD402", **recorded(8.0, 8.0)) == []
    assert findings("DD402", **recorded(0.0, 0.0)) == []


def test_sharded_units_of_a_recording_have_rules_of_their_own() -> None:
    assert findings("DD402", **{**recorded(50.0, 46.0), "shard_units": {}}) == []


def test_one_rank_lowers_confidence_and_says_why() -> None:
    found = the_finding("DD402", **{**SERIAL, "collectives": {**SERIAL["collectives"], "matched_ranks": 1}})
    assert found.confidence is Confidence.LOW
    assert "waiting for a late rank" in found.doubt


def test_one_step_of_one_rank_does_not_decide() -> None:
    one = {**SERIAL["collectives"], "matched_ranks": 1}
    (said,) = check("DD402", steps=1, **{**SERIAL, "collectives": one})
    assert isinstance(said, Abstain)
    assert "all ranks" in said.capture


def test_advice_for_one_huge_bucket_names_the_bucket_option() -> None:
    found = the_finding("DD402", shard_units=None, grad_buckets={"count": 1}, **SERIAL)
    assert "bucket_cap_mb" in found.fix[0]
