from dataclasses import replace
from typing import Any

from ddiag.model.signals_incident import Stall
from ddiag.rulekit import Confidence, Finding, Severity
from ddiag.rulekit.finding import State
from tests.rules.checking import evidence, findings, the_finding

LOST = {"exit_code": 1, "exception": "RuntimeError", "message": "[gloo/tcp/pair.cc:537] Connection closed by peer"}
TERM, KILL, SEGV = {"signal": 15}, {"signal": 9}, {"signal": 11}


def crash(ends: dict[int, dict[str, Any]], **more: Any) -> Finding:
    return the_finding("DD943", exits={"exit_code": 1, "ends": ends, **more})


def everybody(end: dict[str, Any], *, but: int, end_s: float = 10.3) -> dict[int, dict[str, Any]]:
    return {rank: {**end, "end_s": end_s} for rank in range(8) if rank != but}


def test_the_rank_that_raised_is_named_and_those_the_launcher_ended_are_not() -> None:
    raised = {"exit_code": 1, "exception": "ValueError", "message": "bad batch", "where": "train.py:41 in step"}
    found = crash({5: {**raised, "end_s": 10.0}, **everybody(TERM, but=5)})
    assert found.culprits.ranks == (5,)
    assert found.culprits.where == "train.py:41 in step"
    assert found.culprits.hosts == ("node1",)
    assert found.title == "rank 5 ended first: ValueError: bad batch"
    assert (found.state, found.severity, found.confidence) == (State.CRASHED, Severity.CRITICAL, Confidence.HIGH)
    assert evidence(found, "rank 0 ended later").value == 0.3


def test_a_killed_rank_is_named_though_its_peers_fail_in_the_same_moment() -> None:
    found = crash({2: {**KILL, "end_s": 10.0}, **everybody(LOST, but=2, end_s=10.05)})
    assert found.culprits.ranks == (2,)
    assert "killed by SIGKILL" in found.title
    assert found.victims == (0, 1, 3, 4, 5, 6, 7)


def test_who_lost_a_peer_is_no_culprit_even_when_it_ended_first() -> None:
    raised = {"exit_code": 1, "exception": "KeyError", "message": "'x'", "end_s": 10.4}
    assert crash({3: raised, **everybody(LOST, but=3, end_s=10.0)}).culprits.ranks == (3,)


def test_a_rank_that_the_launcher_ended_because_others_ran_out_of_time_is_no_culprit() -> None:
    late = {"exit_code": 1, "exception": "RuntimeError", "message": "Timed out waiting 60000ms for recv operation"}
    found = crash({1: {**TERM, "end_s": 10.2}, **everybody(late, but=1, end_s=10.0)})
    assert found.culprits.ranks == ()


def test_a_rank_that_was_stopped_and_killed_by_the_launcher_at_last_is_no_culprit() -> None:
    late = {"exit_code": 1, "exception": "RuntimeError", "message": "Timed out waiting 60000ms for recv operation"}
    found = crash({1: {**KILL, "end_s": 40.2}, **everybody(late, but=1, end_s=10.0)})
    assert found.culprits.ranks == ()


def test_ends_in_which_nobody_is_first_are_the_echo_of_a_stall_with_a_culprit() -> None:
    late = {"exit_code": 1, "exception": "RuntimeError", "message": "Timed out waiting 60000ms for recv operation"}
    ends = {1: {**TERM, "end_s": 10.2}, **everybody(late, but=1, end_s=10.0)}
    stall = Stall("late", (1,), (0, 2), "high", "default_pg", 23, "all_reduce", "rank 1 did not come")
    assert not findings("DD943", exits={"exit_code": 1, "ends": ends}, stall=stall)


def test_an_abort_in_a_call_that_the_others_make_differently_shows_the_calls() -> None:
    ends = {1: {"signal": 6, "end_s": 10.0}, **everybody(LOST, but=1, end_s=10.3)}
    plain = Stall("mismatch", (1,), (0, 2), "high", "default_pg", 23, "all_reduce", "they do not call the same")
    stall = replace(plain, mismatch="all_reduce of 1,000 elements on 7 ranks, of 500 on rank 1")
    found = the_finding("DD943", exits={"exit_code": 1, "ends": ends}, stall=stall)
    assert found.culprits.ranks == (1,)
    assert "of 500 on rank 1" in found.fix[0]
    assert found.evidence[0].value == stall.mismatch


def test_a_rank_that_somebody_ended_is_named_when_the_others_failed_after_it() -> None:
    assert crash({1: {**TERM, "end_s": 10.0}, **everybody(LOST, but=1, end_s=10.4)}).culprits.ranks == (1,)


def test_kills_for_want_of_memory_are_said() -> None:
    found = crash({1: {**KILL, "end_s": 10.0, "out_of_memory_kills": 1}, **everybody(TERM, but=1)})
    assert "want of memory" in found.title
    assert "ran out of memory" in found.fix[0]
    raised = {"exit_code": 1, "exception": "ValueError", "message": "", "end_s": 10.0, "out_of_memory_kills": 1}
    found = crash({1: raised, **everybody(TERM, but=1)})
    assert not [row for row in found.evidence if "memory" in row.label], "somebody else was killed"


def test_a_native_crash_asks_for_its_stack() -> None:
    assert "PYTHONFAULTHANDLER" in crash({1: {**SEGV, "end_s": 10.0}, **everybody(TERM, but=1)}).fix[0]


def test_two_that_fail_at_once_have_no_known_order() -> None:
    found = crash({1: {"exit_code": 1, "end_s": 10.0}, 2: {"exit_code": 1, "end_s": 10.2}, 3: {**TERM, "end_s": 10.3}})
    assert found.culprits.ranks == ()
    assert found.confidence is Confidence.LOW


def test_the_same_exception_everywhere_is_one_cause() -> None:
    raised = {"exit_code": 1, "exception": "FileNotFoundError", "message": "no data", "where": "data.py:3 in load"}
    found = crash({rank: {**raised, "end_s": 10.0 + 0.01 * rank} for rank in range(8)})
    assert found.culprits.ranks == ()
    assert found.culprits.where == "data.py:3 in load"
    assert "all with FileNotFoundError: no data" in found.title


def test_a_launcher_that_was_ended_ends_every_rank_and_none_is_to_blame() -> None:
    found = crash({rank: {**TERM, "end_s": 10.0 + 0.01 * rank} for rank in range(8)})
    assert found.culprits.ranks == ()
    assert "no training process was seen to fail first" in found.title


def test_an_interrupt_of_the_launcher_interrupts_every_rank() -> None:
    interrupted = {"exit_code": 1, "exception": "KeyboardInterrupt", "message": ""}
    assert crash({rank: {**interrupted, "end_s": 10.0 + 0.01 * rank} for rank in range(8)}).culprits.ranks == ()


def test_a_rank_whose_end_nobody_saw_is_suspected_only() -> None:
    gone = {"end_ns": None, "exit_code": None, "closed": False}
    found = crash({4: gone, **everybody(TERM, but=4)})
    assert found.culprits.ranks == (4,)
    assert found.confidence is Confidence.LOW
    found = crash({4: gone, **everybody(LOST, but=4)})
    assert found.culprits.ranks == (4,)


def test_a_rank_that_vanished_is_named_though_nobody_saw_how() -> None:
    vanished = {"exit_code": None, "closed": False, "end_s": 10.0}
    found = crash({4: vanished, **everybody(LOST, but=4)})
    assert found.culprits.ranks == (4,)
    assert found.confidence is Confidence.MEDIUM
    assert "how was not seen" in found.title


def test_ranks_that_vanish_after_a_known_failure_are_the_launchers_doing() -> None:
    vanished = {"exit_code": None, "closed": False}
    assert crash({4: {"exit_code": 3, "end_s": 10.0}, **everybody(vanished, but=4)}).culprits.ranks == (4,)


def test_an_unseen_rank_lowers_the_confidence_in_who_was_first() -> None:
    found = crash({1: {**KILL, "end_s": 10.0}, 2: {"end_ns": None, "exit_code": None, "closed": False}})
    assert found.culprits.ranks == (1,)
    assert found.confidence is Confidence.MEDIUM
    assert "rank 2" in found.doubt


def test_a_command_that_failed_after_a_good_training_blames_no_rank() -> None:
    found = crash({}, exit_code=5)
    assert found.culprits.ranks == ()
    assert found.title == "the job failed with exit code 5: no training process was seen to fail first"


def test_a_job_somebody_ended_did_not_crash() -> None:
    ends = {rank: dict(TERM) for rank in range(8)}
    assert findings("DD943", exits={"exit_code": 143, "asked_to_end": "SIGTERM", "ends": ends}) == []


def test_a_job_that_succeeded_or_still_runs_did_not_crash() -> None:
    assert findings("DD943", exits={"exit_code": 0, "ends": {0: {"exit_code": 1}}}) == []
    running = {rank: {"end_ns": None, "exit_code": None, "closed": False} for rank in range(8)}
    assert findings("DD943", exits={"exit_code": None, "ends": running}) == []


def test_a_rank_that_died_while_the_others_still_wait_is_named() -> None:
    running = {rank: {"end_ns": None, "exit_code": None, "closed": False} for rank in range(8)}
    found = the_finding("DD943", exits={"exit_code": None, "ends": {**running, 6: {**SEGV, "end_s": 1.0}}})
    assert found.culprits.ranks == (6,)


def test_a_job_that_was_started_again_and_runs_did_not_crash() -> None:
    ends = {6: {**SEGV, "end_s": 1.0}}
    assert findings("DD943", exits={"exit_code": None, "started_again": True, "ends": ends}) == []
    assert crash(ends, started_again=True).culprits.ranks == (6,)


def test_a_trace_knows_nothing_of_ends() -> None:
    assert findings("DD943", exits=None) == []
