"""Rings of a run folder on a network file system live in memory until the job has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.schema import placement
from ddiag.schema.folder import find_processes, process_files


def _mounts(run: Path, kind: str) -> str:
    point = str(run).replace(" ", r"\040")
    return f"/dev/vda / ext4 rw 0 0\nserver:/x {point} {kind} rw 0 0\nproc /proc proc rw 0 0\n"


def _ring(run: Path) -> Path:
    files = process_files(run, attempt=0, rank=1, pid=9)
    files.folder.mkdir(parents=True)
    return files.ring


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "btrfs"])
def test_on_a_local_file_system_it_lies_in_the_run_folder(tmp_path: Path, kind: str) -> None:
    ring = _ring(tmp_path / "run")
    assert placement.place(ring, mounts=_mounts(tmp_path, kind), memory=tmp_path) == ring


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "fuse"])
def test_on_a_network_it_lies_in_memory_and_is_found_and_settled(tmp_path: Path, kind: str) -> None:
    run, memory = tmp_path / "my run", tmp_path / "shm"
    memory.mkdir()
    ring = _ring(run)
    there = placement.place(ring, mounts=_mounts(run, kind), memory=memory)
    assert memory in there.parents
    there.write_bytes(b"records")
    (found,) = find_processes(run)
    assert found.ring.read_bytes() == b"records"

    assert placement.settle(run, pid=8) == 0
    assert placement.settle(run, pid=9) == 1
    assert not ring.is_symlink()
    assert ring.read_bytes() == b"records"
    assert list(memory.rglob("*.ring")) == []
    assert placement.settle(run) == 0


def test_the_deepest_and_latest_mount_counts(tmp_path: Path) -> None:
    mounts = f"a / nfs rw 0 0\nb {tmp_path} nfs rw 0 0\nc {tmp_path} ext4 rw 0 0\nd {tmp_path}/runs2 lustre rw 0 0\n"
    assert placement.file_system(tmp_path / "runs" / "x", mounts) == "ext4"
    assert placement.file_system(Path("/somewhere/x"), mounts) == "nfs"


def test_without_memory_to_write_to_it_stays(tmp_path: Path) -> None:
    ring = _ring(tmp_path / "run")
    assert placement.place(ring, mounts=_mounts(tmp_path, "nfs"), memory=tmp_path / "absent") == ring


def test_a_ring_of_another_node_stays_a_link(tmp_path: Path) -> None:
    ring = _ring(tmp_path / "run")
    ring.symlink_to(tmp_path / "not on this node")
    assert placement.settle(tmp_path / "run") == 0
    assert ring.is_symlink()
