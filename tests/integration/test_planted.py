"""Real jobs with one fault planted: the first finding names it, and its rank; the same job done right is quiet.

The machine that runs the tests has work of its own. Where a recording shows that others took the processors from the
job (DD209), that is true, and is not held against the diagnosis; nothing else is excused.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddiag.api import diagnose, load
from ddiag.rulekit import Finding, Severity
from ddiag.rulekit.diagnosis import Diagnosis
from tests.integration.deepspeed_ops import deepspeed_environment, python_with
from tests.integration.recording import JOBS
from tests.integration.running import PYTHON, TORCHRUN, environment, only_run, recorded, run

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("planted"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]

CULPRIT = (1,)
EVERYBODY = ()
TOO_FEW_CPUS = "DD209"


@dataclass(frozen=True)
class Planted:
    """A fault, the job that has it, and the job that does the same right."""

    rule: str
    ranks: tuple[int, ...]
    faulty: str
    healthy: str
    job: str = "planted"
    """Name of its script."""


PLANTED = {
    "slow_input_on_one_rank": Planted("DD502", CULPRIT, "--slow-read-ms=80", ""),
    "tiny_buckets": Planted("DD403", EVERYBODY, "--width=64 --layers=150 --bucket-mb=0.01", "--width=64 --layers=150"),
    "no_sync_missing": Planted(
        "DD801",
        EVERYBODY,
        "--width=1024 --layers=4 --accumulate=4 --steps=24",
        "--width=1024 --layers=4 --accumulate=4 --steps=24 --no-sync",
    ),
    "gc_storm_on_one_rank": Planted("DD203", CULPRIT, "--objects=200000 --collect", "--objects=200000"),
    "memory_creep": Planted(
        "DD603",
        EVERYBODY,
        "--width=256 --steps=120 --keep-mb=8",
        "--width=256 --steps=120 --keep-mb=8 --forget-every=4",
    ),
    "checkpoint_every_step": Planted(
        "DD207",
        EVERYBODY,
        "--width=1024 --layers=4 --save-every=1",
        "--width=1024 --layers=4 --save-every=30",
    ),
    "starved_cpu_optimizer": Planted("DD1002", EVERYBODY, "512", "1", job="planted_offload"),
}
QUICK = ("slow_input_on_one_rank",)
"""The others run in ``make test-long``."""
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long, id=name) for name in PLANTED]


def diagnosed(folder: Path, planted: Planted, options: str) -> Diagnosis:
    """Record the job with *options* and diagnose what it left."""
    out = folder / "runs"
    python, variables, own = PYTHON, {}, [f"--out={folder}"]
    if planted.job != "planted":
        python, own = python_with("deepspeed"), []
        variables = {**deepspeed_environment(python), "OMP_WAIT_POLICY": "active"}
    job = [python, *TORCHRUN[1:], "--standalone", "--nproc-per-node=2", str(JOBS / f"{planted.job}.py"), *own]
    done = run([*recorded(out, "--no-report"), *job, *options.split()], cwd=folder, env=environment(**variables))
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-4000:]
    return diagnose(load([str(only_run(out))]))


def alarms(diagnosis: Diagnosis) -> list[Finding]:
    """Findings worth acting on, but for the machine's own work."""
    return [one for one in diagnosis.findings if one.severity is not Severity.INFO and one.rule != TOO_FEW_CPUS]


@pytest.mark.parametrize("name", CASES)
def test_the_fault_comes_first(tmp_path: Path, name: str) -> None:
    planted = PLANTED[name]
    found = alarms(diagnosed(tmp_path, planted, planted.faulty))
    assert found, "nothing was found"
    shown = [(one.rule, one.title) for one in found]
    assert found[0].rule == planted.rule, shown
    assert found[0].culprits.ranks == planted.ranks, shown


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_its_healthy_twin_is_quiet(tmp_path: Path, name: str) -> None:
    found = alarms(diagnosed(tmp_path, PLANTED[name], PLANTED[name].healthy))
    assert [(one.rule, one.title) for one in found] == []
