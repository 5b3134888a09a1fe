"""The ring: readable at any instant, whoever writes and however it ends."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ddiag.capture.ring import RingWriter
from ddiag.schema import ring
from ddiag.schema.phases import FORMAT_VERSION, Kind, State

REPOSITORY = Path(__file__).resolve().parents[3]


def _header(capacity: int) -> ring.RingHeader:
    return ring.RingHeader(FORMAT_VERSION, capacity, 1, 0, 1, 0, 0, 0, 0, 0, 0)


def _begin(writer: RingWriter, value: int, state: int = State.OPEN) -> int:
    """A record whose fields all tell the same number."""
    v = value
    return writer.begin(Kind.MARK, 7, v, v, v, v, 7, 7, v, v, v, v, 0, v, v, v, float(v), state, v)


def _consistent(record: ring.Record) -> bool:
    told = {record.flags, record.group, record.label, record.step, record.peer, record.seq, record.enqueue_ns}
    told |= {record.bytes_in, record.bytes_out, record.thread, int(record.value), record.micro_step, record.start_ns}
    return len(told) == 1


def _read(path: Path, capacity: int) -> list[ring.Record]:
    return ring.unpack_records(path.read_bytes(), capacity)


def test_what_is_written_is_there_without_any_flush(tmp_path: Path) -> None:
    writer = RingWriter.create(tmp_path / "a.ring", _header(8))
    token = _begin(writer, 5)
    (record,) = _read(tmp_path / "a.ring", 8)
    assert _consistent(record)
    assert record.state == State.OPEN
    writer.complete(token, 77)
    (record,) = _read(tmp_path / "a.ring", 8)
    assert (record.end_ns, record.state) == (77, State.DONE)


def test_it_keeps_the_newest_and_counts_all(tmp_path: Path) -> None:
    writer = RingWriter.create(tmp_path / "a.ring", _header(8))
    for value in range(21):
        _begin(writer, value)
    assert [record.index for record in _read(tmp_path / "a.ring", 8)] == list(range(13, 21))
    assert ring.unpack_live((tmp_path / "a.ring").read_bytes()).head == 21


def test_a_late_completion_leaves_another_record_alone(tmp_path: Path) -> None:
    writer = RingWriter.create(tmp_path / "a.ring", _header(4))
    early = _begin(writer, 0)
    for value in range(1, 5):
        _begin(writer, value)
    assert not writer.complete(early, 99)
    assert not writer.set_state(early, State.ISSUED)
    assert not writer.set_times(early, 1, 2, flags=2)
    assert {record.end_ns for record in _read(tmp_path / "a.ring", 4)} == {0}


def test_no_token_completes_nothing(tmp_path: Path) -> None:
    writer = RingWriter.create(tmp_path / "a.ring", _header(4))
    assert not writer.complete(-1, 99)


def test_threads_share_it_without_losing_or_mixing_records(tmp_path: Path) -> None:
    capacity, each, writers = 8192, 1500, 4
    writer = RingWriter.create(tmp_path / "a.ring", _header(capacity))

    def write(start: int) -> None:
        for value in range(start, start + each):
            writer.complete(_begin(writer, value), value)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=write, args=(k * each,)) for k in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    found = _read(tmp_path / "a.ring", capacity)
    assert [record.index for record in found] == list(range(each * writers))
    assert all(_consistent(record) and record.end_ns == record.seq for record in found)
    assert sorted(record.seq for record in found) == list(range(each * writers))


def test_a_full_disk_is_an_error_when_the_ring_is_made_not_later(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"space|large|quota"):
        RingWriter.create(tmp_path / "a.ring", _header(2**45))


def test_where_space_cannot_be_reserved_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(_file: int, _offset: int, _size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    _begin(RingWriter.create(tmp_path / "a.ring", _header(20_000)), 5)
    found = (tmp_path / "a.ring").stat()
    assert found.st_size == ring.ring_bytes(20_000)
    assert found.st_blocks * 512 >= found.st_size
    assert len(_read(tmp_path / "a.ring", 20_000)) == 1


def test_the_header_is_never_shared_by_two_writers(tmp_path: Path) -> None:
    RingWriter.create(tmp_path / "a.ring", _header(4))
    with pytest.raises(FileExistsError):
        RingWriter.create(tmp_path / "a.ring", _header(4))


_WRITE_FOREVER = """
import sys
from pathlib import Path
sys.path[:0] = [{repository!r}]
from ddiag.capture.ring import RingWriter
from ddiag.schema import ring
from ddiag.schema.phases import *
writer = RingWriter.create(Path({path!r}), ring.RingHeader(FORMAT_VERSION, {capacity}, 1, 0, 1, 0, 0, 0, 0, 0, 0))
print("ready", flush=True)
v = 0
while True:
    token = writer.begin(Kind.MARK, 7, v & 0xFFFF, v, v, v, 7, 7, v, v, v, v, 0, v, v, v, float(v), State.OPEN, v)
    writer.complete(token, v + 1)
    v += 1
"""


def _writing(path: Path, capacity: int) -> subprocess.Popen[str]:
    code = _WRITE_FOREVER.format(repository=str(REPOSITORY), path=str(path), capacity=capacity)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def _whole(record: ring.Record) -> bool:
    told = {record.group, record.label, record.step, record.peer, record.seq, record.enqueue_ns, record.start_ns}
    told |= {record.bytes_in, record.bytes_out, record.thread, int(record.value), record.micro_step, record.index}
    return len(told) == 1 and record.flags == record.index & 0xFFFF


def test_killed_at_any_instant_it_reads_up_to_the_last_record(tmp_path: Path) -> None:
    chance = random.Random(4)
    for turn in range(8):
        path = tmp_path / f"{turn}.ring"
        child = _writing(path, 64)
        time.sleep(chance.uniform(0, 0.03))
        child.send_signal(signal.SIGKILL)
        child.wait()
        data = path.read_bytes()
        found = ring.unpack_records(data, 64)
        head = ring.unpack_live(data).head
        assert all(_whole(record) for record in found)
        # One slot at most was being written, and the head may lag by the record in flight.
        assert len(found) >= min(64, head) - 1
        assert not found or found[-1].index + 1 in (head, head + 1)
        unfinished = [record for record in found if record.state != State.DONE]
        assert len(unfinished) <= 1


def test_a_reader_beside_the_writer_sees_no_mixed_record(tmp_path: Path) -> None:
    child = _writing(tmp_path / "a.ring", 64)
    try:
        file = os.open(tmp_path / "a.ring", os.O_RDONLY)
        memory = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        seen = 0
        for _ in range(300):
            first, second = bytes(memory), bytes(memory)
            found = ring.unpack_records(first, 64, again=second)
            seen += len(found)
            assert all(_whole(record) for record in found)
        assert seen > 0
        memory.close()
        os.close(file)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_stopped_writer_is_read_like_any_other(tmp_path: Path) -> None:
    child = _writing(tmp_path / "a.ring", 64)
    try:
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        first, second = (tmp_path / "a.ring").read_bytes(), (tmp_path / "a.ring").read_bytes()
        assert first == second
        assert all(_whole(record) for record in ring.unpack_records(first, 64))
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
