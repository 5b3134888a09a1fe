# ruff: noqa: E501, E101 - what machines print is kept as it is
"""Heartbeats, desync reports, fingerprints, gloo, barriers and stores, by version."""

from __future__ import annotations

import pytest

from tests.unit.ingest.logs.seen import event_in, events_in


def test_a_heartbeat_of_torch_2_3_and_of_2_5() -> None:
    old = "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=103"
    event = event_in(old, "c10d.heartbeat")
    assert (event.rank, event.get("work_list_size")) == (1, 103)
    new = "[rank1]:[F1019 23:18:11.3 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank 1] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
    assert event_in(new, "c10d.heartbeat").get("seconds") == 480


def test_a_desync_report_names_who_lags_and_the_snapshot() -> None:
    text = """
Rank 0
	 - [0] Timeout at collective: ALLREDUCE, #315
	 - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
	   - [2] joined but didn't finish collective #180 (count from 1)
	     [7, 9] finished collective #182, but didn't join collective #183 (count from 1)
	 - Snapshot of ranks' latest states:
	   #182 finished ranks:
	     [7, 9] finished ALLREDUCE
	   #315 started ranks:
	     [0, 1, 2] started ALLREDUCE
[rank0]: other
"""
    event = event_in(text, "c10d.desync")
    assert event.get("lagging") == [2, 7, 9]
    assert event.get("started") == {"315": [0, 1, 2]}
    assert event.get("finished") == {"182": [7, 9]}


def test_a_desync_report_of_ranks_that_never_came() -> None:
    line = " - To our best knowledge, ranks [5, 6] are the lagging ranks that caused this timeout. They never joined any collectives"
    assert event_in(line, "c10d.desync").get("never_joined") == [5, 6]


@pytest.mark.parametrize(
    ("text", "ranks", "ops", "seqs"),
    [
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=21, OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long, TensorDeviceTypes=TensorOptions(dtype=float (default))), but Rank 7 is running collective: CollectiveFingerPrint(SequenceNumber=0OpType=REDUCE).Collectives differ in the following aspects: \t Sequence number: 21vs 0  \t Op type: BROADCASTvs REDUCE",
            [1, 7],
            ["broadcast", "reduce"],
            [21, 0],
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running inconsistent collective: CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[2048], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(x))",
            [0],
            ["all_reduce"],
            [None],
        ),
    ],
)
def test_fingerprints_with_and_without_their_commas(
    text: str, ranks: list[int], ops: list[str], seqs: list[object]
) -> None:
    event = event_in(text, "c10d.fingerprint_mismatch")
    assert (event.get("ranks"), event.get("ops"), event.get("seqs")) == (ranks, ops, seqs)


def test_gloo_waits_and_closed_connections() -> None:
    wait = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    event = event_in(wait, "gloo.timeout")
    assert (event.get("timeout_ms"), event.get("direction")) == (1800000, "recv")
    closed = "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.6]:28048"
    assert event_in(closed, "gloo.peer_closed").get("peer") == "10.0.0.6"


def test_gloos_mesh() -> None:
    line = "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error for [10.9.0.3]:33112"
    event = event_in(line, "gloo.connect_failed")
    assert (event.get("peer"), event.get("port")) == ("10.9.0.3", 33112)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms", [4, 5, 6, 7]),
        ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms", [1]),
    ],
)
def test_monitored_barriers_name_who_did_not_come(words: str, missing: list[int]) -> None:
    assert event_in(f"[rank0]: RuntimeError: {words}", "c10d.monitored_barrier").get("missing") == missing


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        (
            "[rank3]:[W606 10:00:01.1 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 3]  using GPU 1 to perform barrier as devices",
            3,
        ),
        (
            "[W ProcessGroupNCCL.cpp:1569] Rank 3 using best-guess GPU 1 to perform barrier as devices used by this process",
            3,
        ),
        (
            "[rank3]:[W606 10:00:01.1 ProcessGroupNCCL.cpp:5023] [PG ID 0 PG GUID 0 Rank 3]  using GPU 1 as device used by this process is",
            3,
        ),
    ],
)
def test_the_barriers_guess(words: str, rank: int) -> None:
    event = event_in(words, "c10d.barrier_device_warning")
    assert (event.rank, event.get("device")) == (rank, 1)


@pytest.mark.parametrize(
    ("words", "place", "timeout_ms"),
    [
        (
            "The client socket has timed out after 900s while trying to connect to (10.1.1.1, 29500).",
            ("10.1.1.1", 29500),
            900_000,
        ),
        (
            "The client socket has timed out after 60s while trying to connect to 10.1.1.1:29500",
            ("10.1.1.1", 29500),
            60_000,
        ),
        (
            "The client socket has timed out after 600000ms while trying to connect to (node-3, 29500).",
            ("node-3", 29500),
            600_000,
        ),
        (
            "TCP client failed to connect/validate to host node-3:29500 - timed out (try=1, timeout=600000ms): x",
            ("node-3", 29500),
            600_000,
        ),
        (
            "The client socket has timed out after 300000ms while trying to connect to (fd00::5, 29400).",
            ("fd00::5", 29400),
            300_000,
        ),
    ],
)
def test_stores_that_cannot_be_reached(words: str, place: tuple[str, int], timeout_ms: int) -> None:
    event = event_in(f"[E108 20:49:31.4 socket.cpp:957] [c10d] {words}", "store.connect_timeout")
    assert ((event.get("address"), event.get("port")), event.get("timeout_ms")) == (place, timeout_ms)


def test_retries_are_no_timeouts() -> None:
    text = """
[W108 20:34:31.1 socket.cpp:697] [c10d] The client socket has failed to connect to [gn21.cluster]:29500 (errno: 110 - Connection timed out).
[W108 20:34:31.2 TCPStore.cpp:282] [c10d] TCP client failed to connect/validate to host 10.0.0.1:29400 - retrying (try=1, timeout=300000ms, delay=912ms): Connection refused
"""
    assert {event.kind for event in events_in(text)} == {"store.connect_retry"}


@pytest.mark.parametrize(
    "words",
    [
        "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ],
)
def test_ports_that_are_taken(words: str) -> None:
    assert event_in(f"[E1 socket.cpp:500] [c10d] {words}", "store.port_in_use").get("port") == 29500


@pytest.mark.parametrize(
    "words",
    [
        "[3] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",
        "[3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
    ],
)
def test_a_root_that_never_wrote_its_id(words: str) -> None:
    event = event_in(f"RuntimeError: {words}", "c10d.unique_id_timeout")
    assert (event.get("waiting_rank"), event.get("root_rank")) == (3, 0)


def test_keys_that_never_came() -> None:
    for words in (
        "wait timeout after 300000ms, keys: /worker/rank_3",
        "Timeout waiting for key: /worker/rank_3 after 300000 ms",
    ):
        event = event_in(f"RuntimeError: {words}", "store.wait_timeout")
        assert (event.get("key"), event.get("timeout_ms")) == ("/worker/rank_3", 300000)
