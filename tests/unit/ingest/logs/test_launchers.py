# ruff: noqa: E501 - what machines print is kept as it is
"""Launchers' words about dead workers, tracebacks, dying interpreters and stacks."""

from __future__ import annotations

import pytest

from tests.unit.ingest.logs.seen import event_in, events_in, stacks_in

CHILD = "launcher.child_failed"
BLOCK = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2024-08-20_11:37:37
  host      : node-b
  rank      : 5 (local_rank: 1)
  exitcode  : -15 (pid: 793063)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 793063
[2]:
  time      : 2024-08-20_11:37:38
  host      : node-b
  rank      : 6 (local_rank: 2)
  exitcode  : 1 (pid: 793064)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2024-08-20_11:37:36
  host      : node-a
  rank      : 4 (local_rank: 0)
  exitcode  : 1 (pid: 793062)
  error_file: /tmp/error.json
  traceback : Traceback (most recent call last):
    File "/w/train.py", line 3, in main
      boom()
  ZeroDivisionError: division by zero

============================================================
"""


@pytest.mark.parametrize("envelope", ["", "node-a: ", "[default0]:", "2026-01-01 00:00:00 "])
def test_torchruns_block(envelope: str) -> None:
    text = "\n".join(envelope + line for line in BLOCK.strip("\n").split("\n"))
    found = {event.rank: event for event in events_in(text, CHILD)}
    assert {rank: event.get("exitcode") for rank, event in found.items()} == {4: 1, 5: -15, 6: 1}
    assert [rank for rank, event in found.items() if event.get("first")] == [4]
    assert found[5].get("signal") == 15
    assert (found[4].host, found[4].get("pid"), found[4].get("local_rank")) == ("node-a", 793062, 0)
    raised = event_in(text, "python.exception")
    assert (raised.rank, raised.get("type"), raised.get("frames")) == (4, "ZeroDivisionError", ["main (/w/train.py:3)"])


@pytest.mark.parametrize(
    "header",
    [
        "ERROR:torch.distributed.elastic.multiprocessing.api:",
        "[2024-04-18 10:46:28,089] torch.distributed.elastic.multiprocessing.api: [ERROR] ",
        "E0820 11:37:36.512000 140231 torch/distributed/elastic/multiprocessing/api.py:833] ",
    ],
)
def test_an_agents_line_of_every_version(header: str) -> None:
    event = event_in(f"{header}failed (exitcode: -9) local_rank: 2 (pid: 36071) of binary: /usr/bin/python", CHILD)
    assert (event.get("local_rank"), event.get("pid"), event.get("signal")) == (2, 36071, 9)


@pytest.mark.parametrize("said", ["Signals.SIGTERM", "15"])
def test_an_agent_that_was_ended_from_outside(said: str) -> None:
    event = event_in(
        f"W0601 04:00:03.2 1 torch/x.py:704] Received {said} death signal, shutting down workers", "launcher.signal"
    )
    assert event.get("signal") == 15


def test_whom_the_agent_ended() -> None:
    text = """
W0903 11:37:21.1 1 torch/x.py:858] Sending process 51010 closing signal SIGTERM
W0903 11:37:51.1 1 torch/x.py:916] Unable to shutdown process 51010 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL
"""
    gentle, forced = events_in(text, "launcher.killing")
    assert (gentle.get("signal"), gentle.get("forced")) == (15, None)
    assert (forced.get("signal"), forced.get("forced")) == (9, True)


@pytest.mark.parametrize(
    ("text", "rank", "local_rank", "exitcode"),
    [
        (
            "[ERROR] [launch.py:341:sigkill_handler] ['python', '-u', 't.py', '--local_rank=0'] exits with return code = -9",
            None,
            0,
            -9,
        ),
        ("mpirun noticed that process rank 3 with PID 0 on node gn12 exited on signal 9 (Killed).", 3, None, -9),
        ("=   RANK 3 PID 4711 RUNNING AT gn12\n=   KILLED BY SIGNAL: 9 (Killed)", 3, None, -9),
        ("[rank: 3] Child process with PID 4711 terminated with code -11. Forcefully terminating", 3, None, -11),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL", None, 3, -9),
        ("/bin/run.sh: line 12:  4711 Killed                  python train.py", None, None, -9),
    ],
)
def test_other_launchers(text: str, rank: int | None, local_rank: int | None, exitcode: int) -> None:
    event = event_in(text, CHILD)
    assert (event.rank, event.get("local_rank"), event.get("exitcode")) == (rank, local_rank, exitcode)


def test_deepspeed_says_which_ranks_are_where() -> None:
    text = """
[INFO] [launch.py:163:main] global_rank_mapping=defaultdict(<class 'list'>, {'w-1': [8, 9, 10, 11]})
[ERROR] [launch.py:341:sigkill_handler] ['python', 't.py', '--local_rank=2'] exits with return code = -9
"""
    event = event_in(text, CHILD)
    assert (event.get("last_started"), event.get("last_rank")) == (2, 10)


@pytest.mark.parametrize(("code", "last"), [(1, None), (-11, None), (-9, 3)])
def test_deepspeed_names_the_process_it_started_last_and_not_the_one_that_failed(code: int, last: int | None) -> None:
    text = (
        f"[ERROR] [launch.py:341:sigkill_handler] ['python', 't.py', '--local_rank=3'] exits with return code = {code}"
    )
    event = event_in(text, CHILD)
    assert (event.rank, event.get("local_rank"), event.get("last_started")) == (None, None, last)


def test_the_engine_of_vllm_says_how_its_worker_ended() -> None:
    event = event_in("ERROR 06-11 12:01:10 utils.py:120] Worker VllmWorkerProcess pid 711 died, exit code: -9", CHILD)
    assert (event.get("pid"), event.get("exitcode"), event.rank) == (711, -9, None)


def test_ray_names_the_node_whose_memory_was_full() -> None:
    text = (
        "(raylet) node_manager.cc:3287: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers "
        "crashed due to other reasons at node (ID: 77aa, IP: 10.1.1.4) over the last time period."
    )
    assert event_in(text, "ray.oom_kill").host == "10.1.1.4"


def test_chained_exceptions_are_one_event() -> None:
    text = """
Traceback (most recent call last):
  File "/w/a.py", line 1, in load
    open(p)
FileNotFoundError: [Errno 2] No such file or directory: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/w/b.py", line 9, in <module>
    main()
  File "/w/b.py", line 5, in main
    raise RuntimeError("no data") from e
RuntimeError: no data
"""
    event = event_in(text, "python.exception")
    assert (event.get("type"), event.get("message")) == ("RuntimeError", "no data")
    assert event.get("frames") == ["main (/w/b.py:5)", "<module> (/w/b.py:9)"]
    assert str(event.get("caused_by")).startswith("FileNotFoundError")


def test_messages_of_several_lines_are_kept() -> None:
    text = """
[rank1]: torch.distributed.DistBackendError: NCCL error in: a.cpp:77, unhandled system error, NCCL version 2.21.5
[rank1]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
[rank1]: Last error:
[rank1]: Call to connect failed
[rank0]: step 3
"""
    message = event_in(text, "python.exception").word("message")
    assert "ncclSystemError" in message
    assert message.endswith("Call to connect failed")


def test_interleaved_tracebacks_keep_their_writers() -> None:
    one = ["Traceback (most recent call last):", '  File "/w/t.py", line 1, in f', "ValueError: of one"]
    two = ["Traceback (most recent call last):", '  File "/w/t.py", line 2, in g', "KeyError: 'of two'"]
    lines = [f"[rank{rank}]: {line}" for pair in zip(one, two, strict=True) for rank, line in enumerate(pair, 1)]
    found = {event.rank: event.get("type") for event in events_in("\n".join(lines), "python.exception")}
    assert found == {1: "ValueError", 2: "KeyError"}


def test_faulthandler_gives_the_reason_and_the_stacks() -> None:
    text = """
Fatal Python error: Segmentation fault

Current thread 0x00007f3c (most recent call first):
  File "/w/kernel.py", line 7 in launch
  File "/w/train.py", line 70 in step

Thread 0x00007f3d (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
"""
    assert event_in(text, "python.fatal").get("reason") == "Segmentation fault"
    assert [stack.frames[0] for stack in stacks_in(text)] == [
        "launch (/w/kernel.py:7)",
        "wait (/usr/lib/python3.11/threading.py:324)",
    ]


def test_py_spy_dumps() -> None:
    text = """
Process 4711: /usr/bin/python train.py --rank=3
Python v3.10.12 (/usr/bin/python3.10)

Thread 4711 (active): "MainThread"
    wait (torch/distributed/c10d.py:88)
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    main (train.py:40)
Thread 4800 (idle): "Thread-1"
    run (threading.py:324)
"""
    main, other = stacks_in(text)
    assert (main.pid, main.rank, main.thread, main.state) == (4711, 3, "MainThread", "active")
    assert main.frames[-1] == "main (train.py:40)"
    assert (other.thread, other.state) == ("Thread-1", "idle")


@pytest.mark.parametrize(
    ("text", "step", "total", "what"),
    [
        (" 14%|█▍        | 377/2724 [13:55:57<86:19:20, 132.41s/it]", 377, 2724, "train"),
        (
            "Running tokenizer on dataset (num_proc=64):  74%|███▎  | 264524/359152 [29:37<08:52, 177.69 examples/s]",
            264524,
            359152,
            "tokenizer",
        ),
        ("downloading shards: 11/30 [10:02<17:20]", 11, 30, "download"),
        ("Epoch 9, Rank 0: 35batch [00:03, 10.53batch/s]", 35, None, "train"),
        ("step: 120/1000 loss: 2.0", 120, 1000, "train"),
    ],
)
def test_the_last_sign_of_life(text: str, step: int, total: int | None, what: str) -> None:
    event = events_in(text, "log.progress")[-1]
    assert (event.get("step"), event.get("total"), event.get("what")) == (step, total, what)


def test_what_is_ignored_or_ends_a_thread_only_is_said_so() -> None:
    traceback = 'Traceback (most recent call last):\n  File "/w/x.py", line 2, in x\nOSError: closed\n'
    assert not events_in("Exception ignored in: <function x>\n" + traceback, "python.exception")
    assert event_in("Exception in thread Thread-3:\n" + traceback, "python.exception").get("thread") == "Thread-3:"
    assert event_in(traceback, "python.exception").get("thread") is None


def test_a_script_that_names_its_rank_before_the_traceback() -> None:
    text = 'Rank 6: Traceback (most recent call last):\n  File "/w/x.py", line 2, in x\nOSError: full'
    assert event_in(text, "python.exception").rank == 6
