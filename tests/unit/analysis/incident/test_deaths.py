"""Who died first: causes against victims, kills and orders from outside; with times, places in files, or neither."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddiag.analysis.incident.deaths import deaths
from ddiag.model.incident import LOCAL, Event, Value
from ddiag.model.placement import Placement, Seat
from ddiag.model.signals_incident import Deaths, Events

SECOND = 1_000_000_000


def _event(
    kind: str, fields: Mapping[str, Value], rank: int | None = None, at_s: float | None = None, source: str = "a.log:1"
) -> Event:
    ts_ns = None if at_s is None else int(at_s * SECOND)
    return Event(kind, fields, rank, None, ts_ns, LOCAL if at_s is not None else "", f"{kind} {fields}", source)


def _raised(
    rank: int | None, message: str, at_s: float | None = None, source: str = "a.log:1", kind: str = "ValueError"
) -> Event:
    fields: dict[str, Value] = {"type": kind, "message": message, "frames": ["f (/w/t.py:1)"]}
    return _event("python.exception", fields, rank, at_s, source)


def _child(rank: int | None, exitcode: int, at_s: float | None = None, **more: Value) -> Event:
    return _event("launcher.child_failed", {"exitcode": exitcode, "first": True, **more}, rank, at_s)


def _found(*events: Event, placement: Placement | None = None) -> Deaths:
    found = deaths(Events(events), placement)
    assert found is not None
    return found


def _ranks(found: Deaths) -> tuple[list[int | None], list[int | None]]:
    return [death.rank for death in found.first], [death.rank for death in found.cascade]


def test_nothing_died() -> None:
    assert deaths(Events((_event("log.progress", {"step": 1}, 0),)), None) is None
    assert deaths(None, None) is None


def test_the_earliest_exception_is_first_and_what_follows_is_not() -> None:
    found = _found(_raised(1, "late", 60.0, "b.log:1"), _raised(5, "early", 10.0))
    assert _ranks(found) == ([5], [1])
    assert (found.first[0].what, found.first[0].where) == ("ValueError: early", "f (/w/t.py:1)")


@pytest.mark.parametrize(
    "words",
    [
        "NCCL error in: x.cpp:1, remote process exited or there was a network error",
        "ncclRemoteError: A call failed possibly due to a network error",
        "[../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:1",
        "Timed out waiting 1800000ms for recv operation to complete",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1",
        "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.",
        "Tried to allocate more than 1EB memory.",
        "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_words_of_a_victim_are_never_first_however_early(words: str) -> None:
    found = _found(_raised(3, words, 1.0), _raised(0, "boom", 50.0))
    assert _ranks(found) == ([0], [3])


def test_sigterm_and_the_watchdogs_abort_follow_another_death() -> None:
    watched = _event("c10d.watchdog_timeout", {"seq": 1, "op": "all_reduce"}, 2, 600.0)
    found = _found(_child(1, -15, 5.0), _child(2, -6, 601.0), _child(0, -11, 10.0), watched)
    assert _ranks(found)[0] == [0]
    assert sorted(rank for rank in _ranks(found)[1] if rank is not None) == [1, 2]


def test_a_kill_by_its_launcher_is_no_death_of_its_own() -> None:
    killing = _event("launcher.killing", {"pid": 7, "signal": 9, "forced": True}, None, 40.0)
    found = _found(_child(1, -9, 41.0, pid=7), killing, _raised(3, "boom", 10.0))
    assert _ranks(found) == ([3], [1])


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ((), "signal"),
        ((_event("kernel.oom_killer", {"pid": 9}, None, 99.0),), "host_oom"),
        ((_event("ds.host_memory", {"percent": 93.0}, None, 50.0),), "host_oom"),
    ],
)
def test_a_kill_from_nowhere_is_a_lack_of_memory_where_something_shows_it(more: tuple[Event, ...], cause: str) -> None:
    found = _found(_child(4, -9, 100.0, pid=9, local_rank=0), *more)
    assert [(death.cause, death.rank) for death in found.first] == [(cause, 4)]


def test_an_order_to_stop_that_comes_first_is_the_cause() -> None:
    order = _event("slurm.cancelled", {"reason": "preemption"}, None, 100.0)
    found = _found(order, _child(0, -15, 101.0), _child(1, -9, 131.0))
    assert found.preempted
    assert [death.cause for death in found.first] == ["preempted"]


def test_an_order_to_stop_after_a_death_is_its_consequence() -> None:
    order = _event("launcher.signal", {"signal": 15, "who": "agent"}, None, 100.0)
    found = _found(order, _raised(2, "boom", 98.0), _child(0, -15, 101.0))
    assert not found.preempted
    assert _ranks(found)[0] == [2]


def test_without_times_the_place_in_one_file_decides() -> None:
    found = _found(_raised(1, "second", None, "a.log:20"), _raised(4, "first", None, "a.log:10"))
    assert (_ranks(found)[0], found.ordered) == ([4], True)


def test_without_times_in_two_files_nobody_is_first() -> None:
    found = _found(_raised(1, "one", None, "a.log:20"), _raised(4, "other", None, "b.log:10"))
    assert sorted(rank for rank in _ranks(found)[0] if rank is not None) == [1, 4]
    assert not found.ordered


def test_a_line_without_time_has_that_of_its_neighbours() -> None:
    before = _event("c10d.barrier_device_warning", {"device": 0}, 1, 5.0, "b.log:3")
    found = _found(before, _raised(1, "one", None, "b.log:4"), _raised(4, "other", 60.0, "a.log:9"))
    assert (_ranks(found), found.ordered) == (([1], [4]), True)


def test_the_same_error_at_once_on_several_ranks_is_independent() -> None:
    found = _found(*(_raised(rank, "bad option", 1.0 + rank, f"r{rank}.log:1") for rank in range(3)))
    assert _ranks(found) == ([0, 1, 2], [])


def test_an_exception_that_was_survived_is_no_death() -> None:
    went_on = _event("log.progress", {"step": 9}, 3, None, "a.log:50")
    assert deaths(Events((_raised(3, "mirror is down", None, "a.log:10"), went_on)), None) is None


def test_a_job_that_says_it_is_complete_survived_what_it_printed_before() -> None:
    complete = _event("log.phase", {"phase": "exit", "begin": False}, None, None, "a.log:50")
    assert deaths(Events((_raised(3, "mirror is down", None, "a.log:10"), complete)), None) is None
    stopped = _child(3, 1, 9.0)
    assert _ranks(_found(_raised(3, "mirror is down", None, "a.log:10"), complete, stopped))[0] == [3]


def test_the_one_peer_that_all_lost_is_a_host_that_died() -> None:
    closed = [_event("gloo.peer_closed", {"peer": "10.0.0.6"}, rank, None, f"a.log:{rank + 1}") for rank in (0, 1, 3)]
    (death,) = _found(*closed).first
    assert (death.cause, death.host, death.rank) == ("unknown", "10.0.0.6", None)
    circle = [
        _event("gloo.peer_closed", {"peer": f"10.0.0.{rank}"}, rank, None, f"a.log:{rank + 1}") for rank in (0, 1)
    ]
    assert deaths(Events(tuple(circle)), None) is None
    with_reason = _found(*closed, _raised(2, "boom", None, "a.log:90"))
    assert _ranks(with_reason)[0] == [2]


def test_a_kill_without_a_name_belongs_to_the_only_worker_that_was_killed() -> None:
    found = _found(_event("slurm.oom_kill", {"job": "1"}), _child(6, -9, 5.0, host="n3"))
    assert [(death.cause, death.rank) for death in found.first] == [("host_oom", 6)]


def test_local_ranks_become_ranks_on_one_node_and_through_the_launchers_pairs() -> None:
    assert _ranks(_found(_child(None, -11, 1.0, local_rank=2)))[0] == [2]
    lost = _event("nccl.peer_lost", {"local_rank": 3, "what": "Connection closed by localRank 3"})
    assert _ranks(_found(lost))[0] == [3]
    two = Placement((Seat(0, "a"), Seat(8, "b")), ("a", "b"))
    assert _ranks(_found(_child(None, -11, 1.0, local_rank=2), placement=two))[0] == [None]


def test_a_cuda_error_of_the_watchdog_is_a_death_of_its_rank() -> None:
    error = _event("c10d.watchdog_exception", {"error": "CUDA error: an illegal memory access was encountered"}, 2, 5.0)
    (death,) = _found(error, _raised(2, "an illegal memory access was encountered", 6.0)).first
    assert (death.cause, death.rank) == ("cuda_error", 2)
