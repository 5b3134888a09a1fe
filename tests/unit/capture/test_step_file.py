"""The mapped file of step summaries: what a reader finds while it grows, after a kill, on a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddiag.capture import step_file
from ddiag.capture.step_file import PIECE, StepWriter
from ddiag.ingest.step_file import read_steps
from ddiag.schema import steps as layout

HEADER = layout.pack_header(pid=1, rank=0, attempt=0, wall_ns=1, mono_ns=1)
MANY = 2 * PIECE // layout.RECORD_BYTES + 7
"""Fill two pieces and begin a third."""


def _record(step: int) -> layout.StepRecord:
    return layout.empty(step)._replace(start_ns=step + 1, end_ns=step + 2, ring_head=step)


def _append(writer: StepWriter, step: int) -> None:
    record = _record(step)
    writer.append(record.end_ns, layout.flat(record._replace(end_ns=0)))


def _steps(path: Path) -> list[int]:
    data = path.read_bytes()
    table = read_steps(data)
    assert (table.damaged, table.cut_bytes) == (0, 0)
    assert table.records["ring_head"].tolist() == table.records["step"].tolist()
    assert [one.step for one in layout.unpack(data)] == table.records["step"].tolist()
    found: list[int] = table.records["step"].tolist()
    return found


def _written(path: Path, count: int, dropped: list[int] | None = None) -> StepWriter:
    lost = [] if dropped is None else dropped
    writer = StepWriter(path, HEADER, lambda: lost.append(1))
    for step in range(count):
        _append(writer, step)
    return writer


@pytest.mark.parametrize("count", [0, 1, 215, 216, MANY])
def test_all_is_there_while_it_grows_and_the_rest_is_cut_off_in_the_end(tmp_path: Path, count: int) -> None:
    path = tmp_path / "s"
    writer = _written(path, count)
    assert _steps(path) == list(range(count))
    writer.close()
    assert _steps(path) == list(range(count))
    assert path.stat().st_size == layout.HEADER_BYTES + count * layout.RECORD_BYTES
    _append(writer, count)
    assert len(_steps(path)) == count


def test_a_killed_process_leaves_every_step(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path;"
        "from tests.unit.capture.test_step_file import _written;"
        "kept = _written(Path(sys.argv[1]), 300); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s"), root], check=False)
    assert done.returncode == -9
    assert _steps(tmp_path / "s") == list(range(300))


def test_a_record_without_its_end_is_none(tmp_path: Path) -> None:
    path = tmp_path / "s"
    _written(path, 3)
    data = bytearray(path.read_bytes())
    half = layout.HEADER_BYTES + 3 * layout.RECORD_BYTES
    data[half + 32 : half + 40] = b"\1" * 8
    table = read_steps(bytes(data))
    assert (table.records.size, table.damaged, table.cut_bytes) == (3, 0, 40)


def test_what_was_written_behind_a_readers_back_waits_for_the_next_look(tmp_path: Path) -> None:
    """The reader passed the place of record 2 before it was written, and that of record 3 after."""
    path = tmp_path / "s"
    _written(path, 4)
    data = bytearray(path.read_bytes())
    hole = layout.HEADER_BYTES + 2 * layout.RECORD_BYTES
    data[hole : hole + layout.RECORD_BYTES] = bytes(layout.RECORD_BYTES)
    table = read_steps(bytes(data))
    assert (table.records["step"].tolist(), table.damaged, table.cut_bytes) == ([0, 1], 0, 0)
    assert [one.step for one in layout.unpack(bytes(data))] == [0, 1]


def test_a_full_disk_drops_and_counts_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []
    fits = PIECE // layout.RECORD_BYTES
    writer = _written(tmp_path / "s", fits, dropped)

    def full(*_args: int, **_more: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(step_file, "reserve", full)
        _append(writer, fits)
        _append(writer, fits)
    assert len(dropped) == 2
    _append(writer, fits)
    writer.close()
    assert _steps(tmp_path / "s") == list(range(fits + 1))


def test_a_file_that_was_replaced_is_left_alone(tmp_path: Path) -> None:
    path, dropped = tmp_path / "s", []
    fits = PIECE // layout.RECORD_BYTES
    writer = _written(path, fits, dropped)
    path.unlink()
    path.write_bytes(b"somebody else's")
    _append(writer, fits)
    writer.close()
    assert len(dropped) == 1
    assert path.read_bytes() == b"somebody else's"


def test_a_forked_child_leaves_its_parents_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    writer = _written(path, 5)
    child = os.fork()
    if child == 0:
        writer.detach()
        _append(writer, 99)
        writer.close()
        os._exit(0)
    os.waitpid(child, 0)
    _append(writer, 5)
    assert _steps(path) == list(range(6))
    assert path.stat().st_size == PIECE


def test_on_a_network_file_system_it_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_file, "file_system", lambda _path: "nfs4")
    writer = _written(tmp_path / "s", 4)
    assert (tmp_path / "s").stat().st_size == layout.HEADER_BYTES + 4 * layout.RECORD_BYTES
    writer.detach()
    assert _steps(tmp_path / "s") == [0, 1, 2, 3]
