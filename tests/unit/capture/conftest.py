"""A recorder in a temporary run folder, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddiag.capture import recorder
from ddiag.capture.door import DOOR
from ddiag.capture.identity import Identity
from ddiag.capture.recorder import Recorder
from ddiag.schema.folder import process_files

ALONE = Identity(rank=0, world_size=1, local_rank=0)


@pytest.fixture
def active(tmp_path: Path) -> Iterator[Recorder]:
    DOOR.forget()
    made = Recorder(process_files(tmp_path, attempt=0, rank=0, pid=1), ALONE, capacity=1024)
    recorder.current = made
    yield made
    recorder.current = None
    DOOR.forget()
