"""After a job that was recorded without the native kernel, it is built for the next one."""

from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import pytest

from tests.integration.recording import JOBS
from tests.integration.running import TORCHRUN, environment, eventually, recorded, run

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]
COMPILER = '#!/bin/sh\nsleep 5\nwhile [ "$1" != -o ]; do shift; done; echo library > "$2"\n'


def test_the_job_does_not_wait_for_the_build(tmp_path: Path) -> None:
    compiler, cache = tmp_path / "compiler", tmp_path / "cache"
    compiler.write_text(COMPILER)
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    given = environment(CXX=str(compiler), XDG_CACHE_HOME=str(cache), DDIAG_BUILD="1")
    job = [*TORCHRUN, "--standalone", "--nproc-per-node=2", str(JOBS / "planted.py"), "--steps=3", f"--out={tmp_path}"]
    done = run([*recorded(tmp_path / "runs", "--no-report"), *job], cwd=tmp_path, env=given)
    ended = time.time()
    assert done.returncode == 0, done.stderr
    assert b"ddiag: the native kernel is being built in the background" in done.stderr
    library = eventually(lambda: next(cache.rglob("*.so"), None), within_s=200)
    assert library.read_text() == "library\n"
    assert library.stat().st_mtime > ended
