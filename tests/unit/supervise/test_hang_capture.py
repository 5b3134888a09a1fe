"""A capture of real processes: their calls from their rings, their states, their stacks; and who is asked for one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddiag.schema.folder import Manifest, write_manifest
from ddiag.schema.hang import BY_USER, capture_requests, say_over, write_capture_request
from ddiag.supervise.hang_capture import Wanted, capture
from ddiag.supervise.live import capture_now
from ddiag.supervise.progress import FIRST_STEP, LocalRanks
from ddiag.supervise.waiting import ALONE_S, patience_s, somebody_waits
from tests.integration.running import eventually

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
REPOSITORY = Path(__file__).resolve().parents[3]

RANK = """
import sys, time
from pathlib import Path
from ddiag.capture import recorder
from ddiag.capture.identity import Identity
from ddiag.schema.folder import process_files
from ddiag.schema.phases import Op, Phase
import os
run, rank, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
who = Identity(rank=rank, world_size=2, local_rank=rank, attempt=0)
active = recorder.Recorder(process_files(run, attempt=0, rank=rank, pid=os.getpid()), who)
active.facts.write("tier", tier="native", sees=[])
number = active.names.id("0")
active.facts.write("group", id=number, name="0", desc="default_pg", backend="gloo", size=2, ranks=[0, 1])
dtype = active.names.dtype("float32")
for seq in (1, 2):
    active.complete(active.begin_collective(Op.ALL_REDUCE, number, bytes_in=64, bytes_out=64, dtype=dtype, seq=seq))
    active.engine_step()
if what == "waits":
    active.issued(active.begin_collective(Op.ALL_REDUCE, number, bytes_in=64, bytes_out=64, dtype=dtype, seq=3))
elif what == "loads":
    active.enter(Phase.INPUT)
if what == "ends":
    active.close()
def stands_here():
    print("ready", flush=True)
    time.sleep(600)
stands_here()
"""


class Job:
    """Ranks that stand still."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.run.mkdir()
        manifest = Manifest("1", "job", ("x",), "torchrun", time.time_ns(), os.uname().nodename, os.getpid())
        write_manifest(self.run, manifest)
        self._script = folder / "rank.py"
        self._script.write_text(RANK)
        self.ranks: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, what: str) -> None:
        command = [sys.executable, str(self._script), str(self.run), str(rank), what]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self.ranks[rank] = process

    def captured(self, *, stuck: tuple[int, ...] = ()) -> dict[int, dict[str, Any]]:
        ranks = LocalRanks(self.run)
        ranks.look()
        path = capture(self.run, "node-a", ranks.all(), Wanted(1, "watchdog", {}, frozenset(stuck)))
        return {one["rank"]: one for one in json.loads(path.read_text())["ranks"]}

    def end(self) -> None:
        for process in self.ranks.values():
            process.kill()
            process.communicate()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    yield started
    started.end()


def test_a_rank_s_calls_come_from_its_ring(job: Job) -> None:
    job.start(0, "waits")
    job.start(1, "loads")
    found = job.captured()
    (group,) = found[0]["groups"]
    assert (group["name"], group["ranks"], group["last_enqueued"], group["last_completed"]) == ("0", [0, 1], 3, 2)
    assert [(one["op"], one["seq"], one["state"]) for one in group["calls"]][-1] == ("all_reduce", 3, "issued")
    assert found[1]["groups"][0]["last_enqueued"] == found[1]["groups"][0]["last_completed"] == 2
    assert (found[1]["phase"], found[1]["step"], found[1]["tier"]) == ("input", 2, "native")


def test_a_stopped_rank_and_one_that_was_killed_are_told_apart_from_one_that_ended(job: Job) -> None:
    for rank, what in ((0, "loads"), (1, "loads"), (2, "ends")):
        job.start(rank, what)
    ranks = LocalRanks(job.run)
    ranks.look()
    os.kill(job.ranks[0].pid, signal.SIGSTOP)
    job.ranks[1].kill()
    job.ranks[1].wait()
    path = capture(job.run, "node-a", ranks.all(), Wanted(1, "watchdog", {}, frozenset()))
    found = {one["rank"]: one for one in json.loads(path.read_text())["ranks"]}
    assert (found[0]["state"], found[0]["closed"]) == ("T", False)
    assert (found[1]["state"], found[1]["closed"]) == ("", False)
    assert found[1]["no_stacks"] == "the process is gone"
    assert found[2]["closed"]


def test_stacks_say_where_they_stand(job: Job) -> None:
    job.start(0, "waits")
    found = job.captured()[0]
    if not found["stacks"]:
        pytest.skip(f"this machine lets nobody trace: {found['no_stacks']}")
    assert any("stands_here" in frame for frame in found["stacks"][0]["frames"])
    assert found["stacks_by"] == "py-spy"


def test_only_ranks_that_are_stuck_are_stopped_for_native_stacks(job: Job) -> None:
    job.start(0, "waits")
    if not job.captured()[0]["stacks"]:
        pytest.skip("this machine lets nobody trace")
    assert {one["kind"] for one in job.captured()[0]["stacks"]} == {"python"}
    assert {one["kind"] for one in job.captured(stuck=(0,))[0]["stacks"]} == {"python", "native"}


def test_what_a_rank_does_and_since_when_is_read_without_its_help(job: Job) -> None:
    job.start(0, "loads")
    os.kill(job.ranks[0].pid, signal.SIGSTOP)
    ranks = LocalRanks(job.run)
    (one,) = ranks.look()
    first = one.standing(time.monotonic_ns())
    time.sleep(0.3)
    later = one.standing(time.monotonic_ns())
    assert later.quiet_s >= first.quiet_s + 0.3
    assert later.busy_with != FIRST_STEP
    assert later.alive


def test_time_in_which_the_whole_job_was_stopped_counts_for_nothing(job: Job) -> None:
    job.start(0, "loads")
    os.kill(job.ranks[0].pid, signal.SIGSTOP)
    (one,) = LocalRanks(job.run).look()
    now = time.monotonic_ns() + 100_000_000_000
    eventually(lambda: one.standing(now).stopped)
    assert one.standing(now).quiet_s > 99
    assert one.standing(now, not_before_ns=now - 1_000_000_000).quiet_s < 2


def waits(job: Job) -> bool:
    return somebody_waits(LocalRanks(job.run).look())


@pytest.mark.parametrize(("what", "waiting"), [("waits", True), ("loads", True), ("exports", False)])
def test_a_pause_in_which_nobody_waits_is_told_from_one_in_which_somebody_does(
    job: Job, what: str, waiting: bool
) -> None:
    job.start(0, what)
    assert waits(job) is waiting


def test_a_rank_that_is_stopped_or_gone_is_waited_for(job: Job) -> None:
    job.start(0, "exports")
    os.kill(job.ranks[0].pid, signal.SIGSTOP)
    eventually(lambda: waits(job))
    ranks = LocalRanks(job.run).look()
    job.ranks[0].kill()
    job.ranks[0].wait()
    assert somebody_waits(ranks)


def test_a_pause_of_a_job_on_the_host_alone_may_last_minutes(job: Job) -> None:
    job.start(0, "exports")
    assert patience_s(LocalRanks(job.run).look()) == ALONE_S


def test_without_a_supervisor_who_asks_captures_himself(job: Job) -> None:
    job.start(0, "waits")
    assert capture_now(job.run) == []
    (path,) = (job.run / "hang").glob("*-1/capture.json")
    assert [one["rank"] for one in json.loads(path.read_text())["ranks"]] == [0]


def test_requests_are_numbered_and_kept(tmp_path: Path) -> None:
    first, second = (write_capture_request(tmp_path, BY_USER, "node-a") for _ in range(2))
    assert [one.number for one in capture_requests(tmp_path)] == [first.number, second.number] == [1, 2]


def test_a_capture_can_be_said_to_be_over(job: Job) -> None:
    job.start(0, "waits")
    job.captured()
    (path,) = (job.run / "hang").glob("*-1/capture.json")
    say_over(path, 17)
    assert json.loads(path.read_text())["over_ns"] == 17
