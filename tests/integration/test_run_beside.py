"""``ddiag run`` beside others that start with Python: coverage's process start, OpenTelemetry's launcher."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddiag.schema import steps
from ddiag.schema.folder import ERRORS, find_processes
from tests.integration.deepspeed_ops import python_with
from tests.integration.running import environment, only_run, outcome, recorded, run, script

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]
TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for step in range(5):
    loss = model(torch.randn(2, 4)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex())
if step > 100:
    print("never")
print([name for name in ("coverage", "opentelemetry.instrumentation.auto_instrumentation") if name in sys.modules])
"""
NO_EXPORT = [f"--{one}_exporter=none" for one in ("traces", "metrics", "logs")]


def _recorded(out: Path, ranks: int = 1) -> None:
    folder = only_run(out)
    assert not (folder / ERRORS).exists(), (folder / ERRORS).read_text()
    found = find_processes(folder)
    assert [files.rank for files in found] == list(range(ranks))
    assert [len(steps.unpack(files.steps.read_bytes())) for files in found] == [5] * ranks


@pytest.mark.parametrize("each_rank", [False, True], ids=["one process", "every rank of torchrun"])
def test_opentelemetry_puts_itself_first(tmp_path: Path, each_rank: bool) -> None:
    """Its sitecustomize runs no other."""
    python = python_with("opentelemetry.instrumentation.auto_instrumentation")
    program = str(Path(python).with_name("opentelemetry-instrument"))
    command = [program, *NO_EXPORT, python, script(tmp_path, TRAIN)]
    if each_rank:
        torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
        command = [*torchrun, *command]
    bare = run(command, env=environment())
    ours = run([*recorded(tmp_path / "runs", "--no-report"), *command], env=environment())
    assert (ours.returncode, sorted(ours.stdout.splitlines())) == (0, sorted(bare.stdout.splitlines()))
    assert bare.stdout.count(b"['opentelemetry.instrumentation.auto_instrumentation']") == 1 + each_rank
    _recorded(tmp_path / "runs", 1 + each_rank)


def test_coverage_counts_the_same_lines(tmp_path: Path) -> None:
    python = python_with("coverage")
    job = script(tmp_path, TRAIN)

    def lines(name: str, words: list[str]) -> tuple[tuple[int, bytes, bytes], list[int]]:
        folder = tmp_path / name
        folder.mkdir()
        settings = folder / "settings"
        settings.write_text(f"[run]\ndata_file = {folder}/data\nparallel = true\ninclude = {job}\n")
        done = run([*words, python, job], env=environment(COVERAGE_PROCESS_START=str(settings)))
        for action in (["combine"], ["json", "-o", str(folder / "found.json")]):
            command = [python, "-m", "coverage", *action, f"--rcfile={settings}"]
            subprocess.run(command, check=True, capture_output=True, timeout=100, cwd=folder)
        (found,) = json.loads((folder / "found.json").read_text())["files"].values()
        return outcome(done), found["executed_lines"]

    ours = lines("ours", recorded(tmp_path / "runs", "--no-report"))
    bare = lines("bare", [])
    assert ours == bare
    assert bare[0][1].count(b"['coverage']") == 1
    assert 2 <= len(bare[1]) < len(TRAIN.splitlines()), "the line that never runs is not counted"
    _recorded(tmp_path / "runs")
