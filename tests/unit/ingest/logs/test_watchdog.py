# ruff: noqa: E501 - what machines print is kept as it is
"""The watchdog's lines by torch version, whole, wrapped, quoted and behind a progress bar."""

from __future__ import annotations

import pytest

from tests.unit.ingest.logs.seen import event_in, events_in

TIMEOUT = "c10d.watchdog_timeout"
CAUGHT = "Watchdog caught collective operation timeout: "
CALL = "WorkNCCL(SeqNum=31, OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=64, Timeout(ms)=600000)"
RAN = " ran for 600321 milliseconds before timing out."


@pytest.mark.parametrize(
    ("header", "call", "rank", "numel_in"),
    [
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 6] ",
            "WorkNCCL(SeqNum=31, OpType=ALLREDUCE, Timeout(ms)=1800000)",
            6,
            None,
        ),
        (
            "[E ProcessGroupNCCL.cpp:828] [Rank 6] ",
            "WorkNCCL(SeqNum=31, OpType=ALLREDUCE, TensorShape=[4, 2], Timeout(ms)=1800000)",
            6,
            None,
        ),
        ("[E ProcessGroupNCCL.cpp:474] [Rank 6] ", CALL, 6, 8),
        ("[rank14]:[E ProcessGroupNCCL.cpp:523] [Rank 6] ", CALL, 14, 8),
        ("[rank14]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 6] ", CALL, 14, 8),
        ("[1,14]<stderr>:[rank14]:[E1206 02:07:08.408271257 ProcessGroupNCCL.cpp:689] [Rank 6] ", CALL, 14, 8),
        (
            "Train: 20%|# | 4/20 [00:10<00:40, 2.5s/it][rank14]:[E918 02:07:08.4 ProcessGroupNCCL.cpp:689] [Rank 6] ",
            CALL,
            14,
            8,
        ),
    ],
)
def test_a_timeout_of_every_version(header: str, call: str, rank: int, numel_in: int | None) -> None:
    event = event_in(header + CAUGHT + call + RAN, TIMEOUT)
    assert (event.rank, event.get("group_rank"), event.get("numel_in")) == (rank, 6, numel_in)
    assert (event.get("seq"), event.get("ran_ms"), event.get("blocking")) == (31, 600321, False)


@pytest.mark.parametrize(
    "words",
    [
        " timed out in call to wait().",
        " timed out in blocking wait (NCCL_BLOCKING_WAIT=1).",
        " timed out in blocking wait (TORCH_NCCL_BLOCKING_WAIT=1).",
        " timed out in blocking wait.",
    ],
)
def test_blocking_waits(words: str) -> None:
    event = event_in("RuntimeError: Work " + CALL + words, TIMEOUT)
    assert event.get("blocking") is True
    assert event.get("ran_ms") is None


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_line_cut_at_the_terminals_width_is_joined(width: int) -> None:
    one = "[rank2]:[E425 02:14:33.160825008 ProcessGroupNCCL.cpp:629] [Rank 2] " + CAUGHT + CALL + RAN
    two = one.replace("rank2", "rank3").replace("Rank 2", "Rank 3")
    wrapped = "\n".join(line[at : at + width] for line in (one, two) for at in range(0, len(line), width))
    found = events_in(wrapped, TIMEOUT)
    assert [(event.rank, event.get("numel_out"), event.get("ran_ms")) for event in found] == [
        (2, 64, 600321), (3, 64, 600321),
    ]  # fmt: skip


def test_two_writers_in_one_line() -> None:
    line = "[rank1]:[E4 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operatMERS_CACHE` is deprecated "
    assert event_in(line + "Transformion timeout: " + CALL + RAN, TIMEOUT).rank == 1


def test_a_timeout_is_said_once_however_often_it_is_quoted() -> None:
    text = f"""
[rank2]:[E425 02:14:33.160825008 ProcessGroupNCCL.cpp:616] [Rank 2] {CAUGHT}{CALL}{RAN}
[rank2]:[E425 02:14:34.160825008 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0 Rank 2] Process group watchdog thread terminated with exception: [Rank 2] {CAUGHT}{CALL}{RAN}
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0 Rank 2] Process group watchdog thread terminated with exception: [Rank 2] {CAUGHT}{CALL}{RAN}
"""
    assert len(events_in(text, TIMEOUT)) == 1
    assert not events_in(text, "c10d.watchdog_exception", "python.fatal")


@pytest.mark.parametrize(
    ("tag", "words", "group", "desc"),
    [
        (
            "[PG 0 Rank 1]",
            "Timeout at NCCL work: 19, last enqueued NCCL work: 21, last completed NCCL work: 18.",
            "0",
            "",
        ),
        (
            "[PG 1 (TENSOR_MODEL_PARALLEL_GROUP) Rank 1]",
            "Exception (either an error or timeout) detected by watchdog at work: 19, last enqueued NCCL work: 21, "
            "last completed NCCL work: 18.",
            "1",
            "TENSOR_MODEL_PARALLEL_GROUP",
        ),
        (
            "[PG ID 0 PG GUID 17(EXPERT_MODEL_PARALLEL_GROUP) Rank 1]",
            " failure detected by watchdog at work sequence id: 19 PG status: last enqueued work: 21, last completed work: 18",
            "17",
            "EXPERT_MODEL_PARALLEL_GROUP",
        ),
        (
            "[PG ID 2 PG GUID 5(undefined) Rank 1]",
            " failure detected by watchdog at work sequence id: 19 PG status: last enqueued work: 21, last completed work: 18",
            "5",
            "",
        ),
    ],
)
def test_how_far_a_group_came(tag: str, words: str, group: str, desc: str) -> None:
    event = event_in(f"[rank9]:[E425 02:14:33.1608 ProcessGroupNCCL.cpp:1834] {tag} {words}", "c10d.pg_status")
    assert (event.rank, event.get("group"), event.get("group_desc"), event.get("group_rank")) == (9, group, desc, 1)
    assert (event.get("at"), event.get("last_enqueued"), event.get("last_completed")) == (19, 21, 18)


def test_a_timeout_takes_its_group_from_the_lines_after_it() -> None:
    text = f"""
[rank9]:[E425 02:14:33.1608 ProcessGroupNCCL.cpp:629] [Rank 1] {CAUGHT}{CALL}{RAN}
[rank8]:[E425 02:14:33.1618 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 3(other) Rank 1]  failure detected by watchdog at work sequence id: 5 PG status: last enqueued work: 5, last completed work: 4
[rank9]:[E425 02:14:33.1628 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 7(mesh_tp) Rank 1]  failure detected by watchdog at work sequence id: 31 PG status: last enqueued work: 33, last completed work: 30
"""
    event = event_in(text, TIMEOUT)
    assert (event.get("group"), event.get("group_desc")) == ("7", "mesh_tp")


def test_a_rank_of_a_subgroup_is_no_global_rank() -> None:
    line = "[E ProcessGroupNCCL.cpp:1709] [PG 4 Rank 1] Timeout at NCCL work: 2, last enqueued NCCL work: 3, last completed NCCL work: 1."
    assert event_in(line, "c10d.pg_status").rank is None


def test_the_stack_of_the_failed_collective() -> None:
    text = """
[rank3]:[E425 02:14:33.1608 ProcessGroupNCCL.cpp:667] Stack trace of the failed collective:
#0 all_reduce from /opt/torch/distributed/distributed_c10d.py:2806
#1 wrapper from /opt/torch/distributed/c10d_logger.py:81
#2 train_step from /job/train.py:214
[rank3]:[E425 02:14:33.1708 ProcessGroupNCCL.cpp:2] other
"""
    frames = event_in(text.replace("\n#", "\n[rank3]:#"), "c10d.collective_stack").get("frames")
    assert frames == [
        "all_reduce (/opt/torch/distributed/distributed_c10d.py:2806)",
        "wrapper (/opt/torch/distributed/c10d_logger.py:81)",
        "train_step (/job/train.py:214)",
    ]


def test_an_exception_of_the_watchdog_that_is_no_timeout() -> None:
    text = "[rank2]:[E ProcessGroupNCCL.cpp:1182] [Rank 2] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"
    event = event_in(text, "c10d.watchdog_exception")
    assert (event.rank, event.get("error")) == (2, "CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("words", "from_rank"),
    [
        (
            "Received a dump signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info.",
            5,
        ),
        ("Received a global dump signal from rank 5, and will try our best to dump the debug info.", 5),
        ("Received a global timeout from another rank and will start to dump the debug info.", None),
        ("Observed flight recorder dump signal from another rank via TCPStore.", None),
    ],
)
def test_dump_signals(words: str, from_rank: int | None) -> None:
    event = event_in(
        f"[rank1]:[E425 02:14:33.1 ProcessGroupNCCL.cpp:1683] [PG ID 0 PG GUID 0 Rank 1] {words}", "c10d.dump_signal"
    )
    assert (event.rank, event.get("from_rank")) == (1, from_rank)
