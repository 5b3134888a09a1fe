"""What the installed torch itself dumps is what the reader expects, as pickle and as JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ingest.flight_dumps import flight, read, status

pytest.importorskip("torch")

JOB = """
import sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

def train():
    for _ in range(5):
        dist.all_reduce(torch.ones(4, 2))

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
train()
dist.barrier()
work = dist.broadcast(torch.ones(3), 0, async_op=True)
work.wait()
open(sys.argv[1], "wb").write(_dump_fr_trace())
open(sys.argv[2], "wb").write(_dump_fr_trace_json())
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("torch")
    script = folder / "job.py"
    script.write_text(JOB)
    paths = folder / "pickle" / "comm_lib_trace_rank_0", folder / "json" / "rank0.json"
    for path in paths:
        path.parent.mkdir()
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "4", "TORCH_NCCL_TRACE_BUFFER_SIZE": "4"}
    done = subprocess.run(
        [sys.executable, str(script), *map(str, paths)], env=environment, capture_output=True, text=True, check=False
    )
    if "_dump_fr_trace" in done.stderr:
        pytest.skip("this torch records gloo's calls not at all")
    assert done.returncode == 0, done.stderr
    return paths


def test_torchs_own_pickle_is_read(dumps: tuple[Path, Path]) -> None:
    run = read(dumps[0])
    rows = flight(run).select("rank", "op", "seq", "state", "numel_in").rows()
    assert rows[:2] == [(0, "all_reduce", 4, "completed", 8), (0, "all_reduce", 5, "completed", 8)]
    assert [row[1:3] for row in rows[2:]] == [("barrier", 6), ("broadcast", 7)]
    assert flight(run)["frame"][0] == f"train ({dumps[0].parents[1] / 'job.py'}:8)"
    kept = status(run)
    assert (kept["desc"], kept["last_enqueued"], kept["oldest_kept"]) == ("default_pg", 7, 4)


def test_torchs_own_json_says_the_same_without_stacks(dumps: tuple[Path, Path]) -> None:
    pickled, spelled = (flight(read(path)).drop("frame") for path in dumps)
    unlike = [name for name in pickled.columns if not pickled[name].equals(spelled[name])]
    assert unlike == []
    assert flight(read(dumps[1]))["frame"].null_count() == 4
