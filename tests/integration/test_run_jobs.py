"""Real trainings under ``ddiag run``: which processes are recorded, attempts, launchers, and how the job ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ddiag.api import load
from ddiag.schema import steps
from ddiag.schema.folder import DIAGNOSIS, REPORT, ProcessFiles, find_processes, read_manifest
from ddiag.schema.samples import RANK_FIELDS, read_samples
from tests.integration.running import (
    PYTHON,
    TORCHRUN,
    TRAIN,
    children,
    environment,
    eventually,
    only_run,
    outcome,
    recorded,
    run,
    script,
    start,
)

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("run_jobs"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]


def _torchrun(folder: Path, *options: str, ranks: int = 2) -> list[str]:
    path = script(folder, TRAIN, name="train.py")
    return [*TORCHRUN, "--standalone", f"--nproc-per-node={ranks}", *options, path]


def _steps(files: ProcessFiles) -> int:
    return len(steps.unpack(files.steps.read_bytes()))


def test_a_training_is_recorded_reported_and_not_changed(tmp_path: Path) -> None:
    bare = run(_torchrun(tmp_path), cwd=tmp_path)
    ours = run([*recorded(tmp_path / "runs"), *_torchrun(tmp_path)], cwd=tmp_path)
    assert outcome(ours) == outcome(bare)
    assert bare.returncode == 0
    folder = only_run(tmp_path / "runs")
    assert [(files.rank, files.attempt, _steps(files)) for files in find_processes(folder)] == [(0, 0, 12), (1, 0, 12)]
    manifest = read_manifest(folder)
    assert (manifest.launcher, manifest.name, manifest.exit_code) == ("torchrun", "train", 0)
    assert [(one.attempt, one.ranks) for one in manifest.attempts] == [(0, (0, 1))]
    assert json.loads((folder / DIAGNOSIS).read_text())["coverage"]["ranks_seen"] == [0, 1]
    assert (folder / REPORT).stat().st_size > 10_000
    assert f"ddiag: report: {folder / REPORT}".encode() in ours.stderr
    rows = load([str(folder)]).table("config")["kind", "key", "value"].rows()
    told = {(kind, key): value for kind, key, value in rows}
    assert told["env", "LOCAL_WORLD_SIZE"] == "2"  # which torchrun set, not who started us
    assert told["package", "torch"] == torch.__version__
    assert int(told["recorded", "process.threads"]) > 0
    assert int(told["recorded", "process.cpus_of_host"]) == os.cpu_count()


def test_a_restart_by_torchelastic_is_a_second_attempt(tmp_path: Path) -> None:
    command = _torchrun(tmp_path, "--max-restarts=1")
    done = run([*recorded(tmp_path / "runs"), *command], cwd=tmp_path, env=environment(FAILURES="1"))
    assert done.returncode == 0
    folder = only_run(tmp_path / "runs")
    found = [(files.attempt, files.rank, _steps(files)) for files in find_processes(folder)]
    assert [(attempt, rank) for attempt, rank, _ in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [count for attempt, _, count in found if attempt == 1] == [12, 12]
    assert all(5 <= count <= 6 for attempt, _, count in found if attempt == 0)
    attempts = read_manifest(folder).attempts
    assert [one.ranks for one in attempts] == [(0, 1), (0, 1)]
    assert attempts[0].start_wall_ns < attempts[1].start_wall_ns


def test_a_worker_killed_by_the_kernel_ends_the_job_as_it_would_anyway(tmp_path: Path) -> None:
    def killed(words: list[str], name: str) -> tuple[int, bytes]:
        folder = tmp_path / name
        folder.mkdir()
        with start([*words, *_torchrun(folder)], cwd=folder, env=environment(WAIT="1")) as process:
            waiting = eventually(lambda: next(iter(folder.glob("waiting-1-*")), None))
            os.kill(int(waiting.name.rpartition("-")[2]), signal.SIGKILL)
            out, _ = process.communicate()
        return process.returncode, out

    assert killed(recorded(tmp_path / "runs"), "ours") == killed([], "bare")
    folder = only_run(tmp_path / "runs")
    assert [_steps(files) for files in find_processes(folder)] == [5, 5] or [
        _steps(files) for files in find_processes(folder)
    ] == [6, 6]
    assert (folder / DIAGNOSIS).exists()


@pytest.mark.long
def test_preemption_of_the_supervisor_reaches_torchrun(tmp_path: Path) -> None:
    def preempted(words: list[str], name: str) -> int:
        folder = tmp_path / name
        folder.mkdir()
        with start([*words, *_torchrun(folder)], cwd=folder, env=environment(WAIT="1")) as process:
            eventually(lambda: len(list(folder.glob("waiting-*"))) == 2)
            process.send_signal(signal.SIGTERM)
            process.communicate()
        return process.returncode

    assert preempted(recorded(tmp_path / "runs"), "ours") == preempted([], "bare")
    assert read_manifest(only_run(tmp_path / "runs")).end_wall_ns is not None


@pytest.mark.long
def test_ctrl_c_of_a_training_ends_like_without(tmp_path: Path) -> None:
    def interrupted(words: list[str], name: str) -> tuple[int, bytes]:
        folder = tmp_path / name
        folder.mkdir()
        with start([*words, *_torchrun(folder)], cwd=folder, env=environment(WAIT="1")) as process:
            eventually(lambda: len(list(folder.glob("waiting-*"))) == 2)
            os.killpg(process.pid, signal.SIGINT)
            out, _ = process.communicate()
        return process.returncode, out

    assert interrupted(recorded(tmp_path / "runs", "--no-report"), "ours") == interrupted([], "bare")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_loader_workers_are_watched_as_workers_and_never_recorded(method: str, tmp_path: Path) -> None:
    job = script(
        tmp_path,
        "import time, torch\n"
        "class Rows(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 40\n"
        "    def __getitem__(self, i):\n"
        "        time.sleep(.2); return torch.randn(4)\n"
        "if __name__ == '__main__':\n"
        f"    loader = torch.utils.data.DataLoader(Rows(), 2, num_workers=2, multiprocessing_context='{method}')\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=.1)\n"
        "    for batch in loader:\n"
        "        model(batch).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "    print('trained')\n",
    )
    scrubbing = ["env", "-u", "DDIAG_RUN"]  # as launchers do that hand on PYTHON* only
    done = run([*recorded(tmp_path / "runs", "--sample-interval", "0.2", "--no-report"), *scrubbing, PYTHON, job])
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path / "runs")
    (files,) = find_processes(folder)
    assert _steps(files) == 20
    _, lines = read_samples(next((folder / "nodes").glob("*.samples")))
    rows = [dict(zip(RANK_FIELDS, row, strict=True)) for line in lines for row in line.get("ranks", ())]
    assert {row["pid"] for row in rows} == {files.pid}
    assert max(row["workers"] for row in rows) >= 2


@pytest.mark.long
def test_a_shell_that_starts_the_job_keeps_its_own_exit_code(tmp_path: Path) -> None:
    line = f"{' '.join(_torchrun(tmp_path))}; exit 5"
    done = run([*recorded(tmp_path / "runs", "--no-report"), "bash", "-c", line], cwd=tmp_path)
    assert done.returncode == 5
    assert len(find_processes(only_run(tmp_path / "runs"))) == 2


def test_steps_asked_for_are_profiled_on_every_rank(tmp_path: Path) -> None:
    command = [*recorded(tmp_path / "runs", "--profile-steps", "4:6"), *_torchrun(tmp_path)]
    done = run(command, cwd=tmp_path)
    assert done.returncode == 0
    folder = only_run(tmp_path / "runs")
    traces = sorted((folder / "profile").glob("*/*.json.gz"))
    assert [path.name for path in traces] == ["r00000.json.gz", "r00001.json.gz"]
    from ddiag import api

    loaded = api.load([str(folder / "profile")])
    assert loaded.table("ranks")["rank"].to_list() == [0, 1]
    for files in find_processes(folder):
        flags = [one.flags for one in steps.unpack(files.steps.read_bytes())]
        profiled = [number for number, value in enumerate(flags) if value & steps.StepFlag.PROFILED]
        assert profiled == [4, 5, 6, 7]  # the trace of 4 to 6 is written during 7


@pytest.mark.long
def test_steps_that_become_slow_are_profiled(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        "import time, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=.1)\n"
        "for step in range(200):\n"
        "    time.sleep(.02 if step < 80 else .1)\n"
        "    model(torch.randn(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n",
    )
    done = run([*recorded(tmp_path / "runs", "--profile-slow", "--no-report"), PYTHON, job])
    assert done.returncode == 0
    (trace,) = (only_run(tmp_path / "runs") / "profile").glob("*/r00000.json.gz")
    assert int(trace.parent.name.split("-")[1]) > 85


@pytest.mark.long
def test_a_killed_supervisor_leaves_a_folder_that_reads_while_the_job_goes_on(tmp_path: Path) -> None:
    with start(
        [*recorded(tmp_path / "runs"), *_torchrun(tmp_path)], cwd=tmp_path, env=environment(STEPS="2000")
    ) as process:
        folder = eventually(lambda: next(iter((tmp_path / "runs").glob("train-*")), None))
        eventually(lambda: len(find_processes(folder)) == 2)
        torchrun = [
            pid for pid in children(process.pid) if b"distributed.run" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert torchrun
        process.kill()
        process.wait()
        from ddiag import api

        eventually(lambda: all(_steps(files) > 3 for files in find_processes(folder)))
        loaded = api.load([str(folder)])
        assert loaded.table("ranks")["rank"].to_list() == [0, 1]
        out, _ = process.communicate()
    assert len(out.splitlines()) == 2000


@pytest.mark.long
def test_a_running_job_is_diagnosed_as_one_that_runs(tmp_path: Path) -> None:
    """The exit code is 0; both ranks are judged by their steps, and nothing is said of an end."""
    command = [*recorded(tmp_path / "runs"), *_torchrun(tmp_path)]
    with start(command, cwd=tmp_path, env=environment(STEPS="10000000")) as process:
        folder = eventually(lambda: next(iter((tmp_path / "runs").glob("train-*")), None))
        eventually(lambda: len(list(folder.glob("ranks/a0/*.steps"))) == 2)
        eventually(lambda: all(_steps(files) > 50 for files in find_processes(folder)))
        written = tmp_path / "diagnosis.json"
        done = run([PYTHON, "-m", "ddiag", "analyze", str(folder), "--no-html", "--json", str(written)])
        assert process.poll() is None
        process.terminate()
        process.communicate()
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(written.read_text())
    assert found["verdict"]["status"] in ("healthy", "degraded", "inconclusive")
    assert found["coverage"]["ranks_seen"] == [0, 1]
    assert not {"DD901", "DD943"} & {one["rule"] for one in found["findings"]}
