"""Appending: whole or not at all, and never into somebody else's file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ddiag.capture.append_file import AppendFile

REPOSITORY = Path(__file__).resolve().parents[3]


def test_what_is_written_is_there(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "a")
    assert file.write(b"one")
    assert file.write(b"two")
    assert (tmp_path / "a").read_bytes() == b"onetwo"


def test_a_descriptor_the_job_closed_and_used_again_is_left_alone(tmp_path: Path) -> None:
    dropped: list[int] = []
    file = AppendFile(tmp_path / "ours", lambda: dropped.append(1))
    number = file._file
    os.close(number)
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    if theirs != number:
        os.dup2(theirs, number)
        os.close(theirs)
    assert not file.write(b"ours")
    assert not file.write(b"ours")
    file.close()
    os.write(number, b"theirs")
    os.close(number)
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert dropped == [1, 1]


def test_after_closing_writes_are_dropped(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "a")
    file.write(b"one")
    file.close()
    file.close()
    assert not file.write(b"two")
    assert (tmp_path / "a").read_bytes() == b"one"


_LIMITED = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = [{repository!r}]
from ddiag.capture.append_file import AppendFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
file = AppendFile(Path({path!r}))
print(file.write(b"1234"), file.write(b"5678"), file.write(b"9abc"), file.write(b"de"))
"""


def test_half_a_record_is_never_left(tmp_path: Path) -> None:
    path = tmp_path / "a"
    code = _LIMITED.format(repository=str(REPOSITORY), path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True False True\n"
    assert path.read_bytes() == b"12345678de"
