"""What the sampler writes: bounded, readable at any instant, true about processes it knows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddiag.capture.identity import start_ticks
from ddiag.errors import InputError
from ddiag.schema.folder import process_files
from ddiag.schema.phases import FORMAT_VERSION
from ddiag.schema.ring import RingHeader, pack_header
from ddiag.schema.samples import RANK_FIELDS, header, read_samples
from ddiag.supervise.host_counters import HostCounters
from ddiag.supervise.processes import JobProcesses
from ddiag.supervise.sample_file import SampleFile

HEADER = header(host="a", wall_ns=1, interval_s=1.0, cpus=2)


def test_a_file_of_samples_never_grows_beyond_its_bound_and_keeps_every_fact(tmp_path: Path) -> None:
    path = tmp_path / "a.samples"
    file = SampleFile(path, HEADER, max_bytes=20_000)
    for number in range(3000):
        file.write({"t": number, "kind": "xid" if number % 500 == 0 else "sample", "n": number})
        assert path.stat().st_size <= 20_000 + 100
    found, lines = read_samples(path)
    kept = list(lines)
    assert found == HEADER
    assert [line["n"] for line in kept if line["kind"] == "xid"] == [0, 500, 1000, 1500, 2000, 2500]
    numbers = [line["n"] for line in kept]
    assert numbers == sorted(set(numbers))
    assert numbers[-100:] == list(range(2900, 3000))
    assert [path.name for path in tmp_path.iterdir()] == ["a.samples"]


def test_only_one_sampler_writes_a_hosts_file(tmp_path: Path) -> None:
    SampleFile(tmp_path / "a.samples", HEADER)
    with pytest.raises(FileExistsError):
        SampleFile(tmp_path / "a.samples", HEADER)


def test_a_file_cut_anywhere_reads_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.samples"
    file = SampleFile(path, HEADER)
    for number in range(5):
        file.write({"t": number, "kind": "sample"})
    data = path.read_bytes()
    first_line = data.index(b"\n") + 1
    for cut in range(first_line, len(data)):
        path.write_bytes(data[:cut])
        _, lines = read_samples(path)
        assert len(list(lines)) == data[first_line:cut].count(b"\n")


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"not json\n", json.dumps({"kind": "ddiag samples"}).encode() + b"\n"]
)
def test_what_is_no_file_of_samples_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.samples"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a file of samples"):
        read_samples(path)


def test_the_host_is_read_with_growing_counters() -> None:
    counters = HostCounters()
    first = counters.read()
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        pass
    second = counters.read()
    assert second["cpu"]["busy_ns"] >= first["cpu"]["busy_ns"] + 100_000_000
    assert second["cpu"]["switches"] > first["cpu"]["switches"]
    assert 0 < second["memory"]["available_bytes"] < 1 << 50


def _ring(run: Path, rank: int, pid: int, ticks: int) -> None:
    files = process_files(run, attempt=0, rank=rank, pid=pid)
    files.folder.mkdir(parents=True, exist_ok=True)
    files.ring.write_bytes(
        pack_header(RingHeader(FORMAT_VERSION, 8, pid, rank, 2, rank, 0, ticks, 0, 0, pid)).ljust(8192)
    )


def _starting(code: str) -> str:
    """A program that starts *code* as its child, and says its pid."""
    start = f"p = subprocess.Popen([sys.executable, '-c', {code!r}])"
    return f"import subprocess, sys\n{start}\nprint(p.pid, flush=True)\np.wait()"


@pytest.fixture
def family() -> object:
    """A launcher with one child, which has a busy child of its own: (launcher, rank, worker)."""
    worker = "import time\nprint('up', flush=True)\nwhile True: pass"
    launcher = _starting(_starting(worker))
    process = subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    words = [process.stdout.readline().strip() for _ in range(3)]
    pids = [int(word) for word in words if word != "up"]
    yield process.pid, *pids
    for pid in (*pids, process.pid):
        os.kill(pid, 9)
    process.wait()
    process.stdout.close()


def test_ranks_are_known_by_their_rings_and_workers_by_their_rank(family: tuple[int, int, int], tmp_path: Path) -> None:
    launcher, rank, worker = family
    _ring(tmp_path, 3, rank, start_ticks(rank))
    processes = JobProcesses(tmp_path, launcher)
    first = dict(zip(RANK_FIELDS, processes.read()["ranks"][0], strict=True))
    assert (first["pid"], first["rank"], first["workers"]) == (rank, 3, 1)
    assert (first["workers_running"], first["loaders"]) == (1, 0)
    time.sleep(0.5)
    found = processes.read()
    second = dict(zip(RANK_FIELDS, found["ranks"][0], strict=True))
    assert second["workers_cpu_ns"] > first["workers_cpu_ns"]
    assert second["rss_bytes"] > 1 << 20
    assert found["others"][0] == 1
    (change,) = processes.affinity_changes()
    assert (change["pid"], change["rank"]) == (rank, 3)
    assert processes.affinity_changes() == []
    assert worker not in [row[0] for row in found["ranks"]]


def test_loader_workers_are_known_by_the_name_that_torch_gives_them(tmp_path: Path) -> None:
    named = "import ctypes; ctypes.CDLL(None).prctl(15, b'pt_data_worker', 0, 0, 0)\n"
    worker = named + "print('up', flush=True)\nwhile True: pass"
    rank = subprocess.Popen([sys.executable, "-c", _starting(worker)], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert rank.stdout is not None
    words = [rank.stdout.readline().strip() for _ in range(2)]
    try:
        _ring(tmp_path, 3, rank.pid, start_ticks(rank.pid))
        processes = JobProcesses(tmp_path, os.getpid())
        first, _, second = (
            dict(zip(RANK_FIELDS, processes.read()["ranks"][0], strict=True)) for _ in _seconds_apart(3, 0.3)
        )
    finally:
        for pid in (int(next(word for word in words if word != "up")), rank.pid, other.pid):
            os.kill(pid, 9)
        rank.wait()
        other.wait()
        rank.stdout.close()
    assert (first["workers"], first["loaders"], first["loaders_runnable"], first["loaders_blocked"]) == (1, 1, 1, 0)
    assert second["loaders_cpu_ns"] > first["loaders_cpu_ns"]


def _seconds_apart(count: int, seconds: float) -> Iterator[int]:
    for number in range(count):
        yield number
        time.sleep(seconds)


def test_a_ring_of_another_hosts_process_with_the_same_pid_is_not_ours(
    family: tuple[int, int, int], tmp_path: Path
) -> None:
    launcher, rank, _ = family
    _ring(tmp_path, 3, rank, start_ticks(rank) + 1)
    found = JobProcesses(tmp_path, launcher).read()
    assert found["ranks"] == []
    assert found["others"][0] == 3
