"""Control groups, InfiniBand, topology and attempts, from files made for the purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.schema.folder import process_files
from ddiag.schema.phases import FORMAT_VERSION
from ddiag.schema.ring import CLOSED_OFFSET, HEADER_BYTES, RingHeader, pack_header
from ddiag.supervise import cgroup, host_counters, sampler
from ddiag.supervise.attempts import attempts, why_no_ranks
from ddiag.supervise.cgroup import CgroupCounters, cgroup_limits
from ddiag.supervise.host_counters import HostCounters
from ddiag.supervise.proc import field, number, read_text


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def _own_group(monkeypatch: pytest.MonkeyPatch, root: Path, text: str) -> None:
    monkeypatch.setattr(cgroup, "ROOT", root)
    monkeypatch.setattr(cgroup, "read_text", lambda path: text if path == "/proc/self/cgroup" else read_text(path))


def test_limits_and_throttling_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own_group(monkeypatch, tmp_path, "0::/job/step\n")
    _write(
        tmp_path / "job" / "step",
        cpu__max="400000 100000\n",
        cpu__stat="usage_usec 5\nnr_periods 9\nnr_throttled 7\nthrottled_usec 1234\n",
        memory__max="8589934592\n",
        memory__current="1000\n",
        memory__events="low 0\noom 2\noom_kill 1\n",
        pids__max="max\n",
        cpuset__cpus__effective="0-3\n",
    )
    assert cgroup_limits() == {"cpus": 4.0, "memory_bytes": 8 << 30, "cpuset": "0-3"}
    expected = {"throttled": 7, "throttled_us": 1234, "memory_bytes": 1000, "oom_kills": 1}
    assert CgroupCounters().read() == {**expected, "memory_limit_bytes": 8 << 30}


def test_the_tightest_limit_around_a_group_counts_and_file_cache_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system limits the job and not the step in it."""
    _own_group(monkeypatch, tmp_path, "0::/job/step\n")
    stat = "anon 9\nfile 1900\ninactive_file 400\nactive_file 250\nslab_reclaimable 50\n"
    _write(tmp_path / "job" / "step", memory__max="max\n", memory__current="10\n", memory__stat="inactive_file 1\n")
    _write(tmp_path / "job", memory__max="5000\n", memory__current="4000\n", memory__stat=stat)
    assert CgroupCounters().read() == {"memory_bytes": 4000, "memory_limit_bytes": 5000, "memory_cached_bytes": 700}


def test_version_1_counts_the_groups_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own_group(monkeypatch, tmp_path, "4:memory:/docker/x\n")
    stat = "inactive_file 5\nactive_file 6\ntotal_inactive_file 70\ntotal_active_file 10\n"
    _write(tmp_path / "memory", memory__limit_in_bytes="900\n", memory__usage_in_bytes="300\n", memory__stat=stat)
    assert CgroupCounters().read() == {"memory_bytes": 300, "memory_limit_bytes": 900, "memory_cached_bytes": 80}


def test_limits_and_throttling_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own_group(monkeypatch, tmp_path, "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n")
    _write(
        tmp_path / "cpu",  # inside a container the group is mounted at the root
        cpu__cfs_quota_us="150000\n",
        cpu__cfs_period_us="100000\n",
        cpu__stat="nr_periods 9\nnr_throttled 7\nthrottled_time 5000000\n",
    )
    _write(tmp_path / "memory", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="5\n")
    assert cgroup_limits() == {"cpus": 1.5}
    assert CgroupCounters().read() == {"throttled": 7, "throttled_us": 5000, "memory_bytes": 5}


def test_no_control_group_is_nothing_not_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _own_group(monkeypatch, tmp_path, "")
    assert cgroup_limits() == {}
    assert CgroupCounters().read() == {}


def test_infiniband_words_become_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_counters, "_IB", tmp_path)
    port = tmp_path / "mlx5_0" / "ports" / "1"
    _write(port, rate="400 Gb/sec (4X NDR)\n", state="4: ACTIVE\n", link_layer="InfiniBand\n")
    _write(port / "counters", port_rcv_data="10\n", port_xmit_data="20\n", symbol_error="3\n", link_downed="1\n")
    _write(port / "hw_counters", out_of_sequence="7\n", local_ack_timeout_err="2\n", np_cnp_sent="9\n")
    counters = HostCounters()
    assert counters.read()["ib"] == {"mlx5_0/1": [40, 80, 4, 0, 0, 7, 0, 2, 0, 9]}
    assert counters.port_facts()["mlx5_0/1"]["rate"] == "400 Gb/sec (4X NDR)"


def test_topology_is_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sampler._topology() == ""
    program.write_text('#!/bin/sh\n[ "$*" = "topo -m" ] && echo "GPU0 X NV18"\n')
    program.chmod(0o755)
    assert sampler._topology() == "GPU0 X NV18\n"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert sampler._topology() == ""


def test_readers_of_missing_files_give_nothing(tmp_path: Path) -> None:
    assert read_text(tmp_path / "no") == ""
    assert number(tmp_path / "no") is None
    assert field("a 1\nb: 22 kB\n", "b") == 22
    assert field("ab 1\n", "a") is None


def _ring(run: Path, rank: int, attempt: int, *, wall_ns: int, closed_ns: int) -> None:
    files = process_files(run, attempt=attempt, rank=rank, pid=rank + 10 * attempt + 1)
    files.folder.mkdir(parents=True, exist_ok=True)
    header = RingHeader(FORMAT_VERSION, 8, files.pid, rank, 2, rank, attempt, 1, wall_ns, 1000, 1)
    data = bytearray(pack_header(header).ljust(HEADER_BYTES, b"\0"))
    data[CLOSED_OFFSET : CLOSED_OFFSET + 8] = closed_ns.to_bytes(8, "little")
    files.ring.write_bytes(bytes(data))


def test_attempts_come_from_the_rings(tmp_path: Path) -> None:
    _ring(tmp_path, 0, 0, wall_ns=5_000, closed_ns=3_000)
    _ring(tmp_path, 1, 0, wall_ns=4_000, closed_ns=0)
    _ring(tmp_path, 0, 1, wall_ns=9_000, closed_ns=2_000)
    files = process_files(tmp_path, attempt=1, rank=1, pid=99)
    files.ring.write_bytes(b"")  # killed before its header was written
    first, second = attempts(tmp_path)
    assert (first.attempt, first.ranks, first.start_wall_ns, first.end_wall_ns) == (0, (0, 1), 4_000, 7_000)
    assert (second.attempt, second.ranks, second.end_wall_ns) == (1, (0,), 10_000)


def test_why_there_are_no_ranks(tmp_path: Path) -> None:
    assert "-I" in why_no_ranks(tmp_path, ["python", "-I", "x.py"])
    assert "init_process_group" in why_no_ranks(tmp_path, ["python", "x.py"])
    (tmp_path / "errors.jsonl").write_text("{}\n")
    assert "errors.jsonl" in why_no_ranks(tmp_path, ["python", "x.py"])
