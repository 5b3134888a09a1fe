"""What a training process says of itself: true, complete, and without a secret."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ddiag.capture.activate import ACTIVATION  # noqa: E402
from ddiag.capture.door import DOOR  # noqa: E402
from ddiag.capture.process_facts import process_facts, ranges  # noqa: E402


def test_it_tells_what_the_job_runs_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("PATH_OF_MINE", "/x")
    found = process_facts()
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["cpus"] == ranges(os.sched_getaffinity(0))
    assert found["cpus_of_host"] == os.cpu_count()
    assert found["host"] == os.uname().nodename
    assert found["executable"] == sys.executable
    assert found["packages"]["numpy"] == sys.modules["numpy"].__version__
    assert found["environment"]["NCCL_DEBUG"] == "WARN"
    assert "PATH_OF_MINE" not in found["environment"]
    assert found["nccl"] is None
    assert found["device"] is None


def test_looking_changes_nothing() -> None:
    before = set(sys.modules)
    process_facts()
    assert set(sys.modules) == before
    assert not torch.cuda.is_initialized()


def test_a_look_that_fails_costs_its_own_value_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise RuntimeError("no")

    monkeypatch.setattr(torch, "get_num_threads", refused)
    errors = DOOR.errors
    found = process_facts()
    assert "threads" not in found
    assert found["torch"] == torch.__version__
    assert DOOR.errors == errors + 1


def test_no_secret_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "NCCL_API_KEY": "hush-1", "DEEPSPEED_TOKEN": "hush-2", "TORCH_X": "https://me:hush-3@host/x",
        "HF_TOKEN": "hush-4", "ACCELERATE_Y": "hf_" + "hush5" * 5, "SLURM_JWT": "eyJhush6abcdef.hush6abcdefgh.hush6",
    }  # fmt: skip
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["train.py", "--wandb-key", "hush-7", "--token=hush-8"])
    ACTIVATION.start(tmp_path)
    ACTIVATION.joined()
    ACTIVATION.stop()
    (path,) = tmp_path.glob("ranks/a0/*.facts.jsonl")
    text = path.read_text()
    assert "hush" not in text
    (fact,) = [fact for line in text.splitlines() if (fact := json.loads(line))["kind"] == "process"]
    assert fact["environment"]["TORCH_X"] == "https://***@host/x"
    assert fact["argv"] == ["train.py", "--wandb-key", "***", "--token=***"]


@pytest.mark.parametrize(("numbers", "text"), [((), ""), ((5,), "5"), ((0, 1, 2, 3, 8), "0-3,8"), ((7, 1, 0), "0-1,7")])
def test_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text
