"""Real jobs with one fault planted: the first finding names it, and its rank; the same job done right is quiet.

The machine that runs the tests has work of its own. Where a recording shows that others took the processors from the
job (DD209), that is true, and is not held against the diagnosis; nothing else is excused.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddiag.api import diagnose, load
from ddiag.rulekit import Finding, Severity
from ddiag.rulekit.diagnosis import Diagnosis
from tests.integration.deepspeed_ops import BUILD_LIMIT_S, deepspeed_environment, python_with
from tests.integration.recording import JOBS
from tests.integration.running import PYTHON, TORCHRUN, environment, only_run, recorded, run

LIMIT_S = 400
pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("planted"),
    pytest.mark.timeout(LIMIT_S),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]

CULPRIT = (1,)
EVERYBODY = ()
TOO_FEW_CPUS = "DD209"
TRIES = 3
WITH_DEEPSPEED, WITH_TENSORBOARD = "deepspeed", "tensorboard"


@dataclass(frozen=True)
class Planted:
    """A fault, the job that has it, and the job that does the same right."""

    rule: str
    ranks: tuple[int, ...]
    faulty: str
    healthy: str | None
    """None where another has the same twin."""
    job: str = "planted"
    """Name of its script."""
    module: str = ""
    """What it needs beside torch."""
    info: bool = False
    """The finding is a remark."""
    needs_cpus: bool = False
    """It can be told only where others do not take the CPUs from the job."""


def loader(rule: str, ranks: tuple[int, ...], fault: str, healthy: str, *, needs_cpus: bool = False) -> Planted:
    """A fault of loader workers; forward sleeps for as long as a device would compute."""
    return Planted(rule, ranks, fault, healthy, job="planted_loader", needs_cpus=needs_cpus)


PLANTED = {
    "slow_input_on_one_rank": Planted("DD502", CULPRIT, "--slow-read-ms=80", ""),
    "slow_input_on_the_first_rank": Planted("DD502", (0,), "--slow-read-ms=80 --culprit=0", None),
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
        "--width=1024 --layers=4 --steps=120 --keep-mb=8",
        "--width=1024 --layers=4 --steps=120 --keep-mb=8 --forget-every=4",
    ),
    "checkpoint_every_step": Planted(
        "DD207",
        EVERYBODY,
        "--width=1024 --layers=4 --save-every=1",
        "--width=1024 --layers=4 --save-every=30",
    ),
    # The twin computes for long enough that communication which waits for a CPU is little of its step.
    "starved_cpu_optimizer": Planted(
        "DD1002", EVERYBODY, "512 16", "1 2048", job="planted_offload", module=WITH_DEEPSPEED
    ),
    "more_compute_on_one_rank": Planted("DD501", CULPRIT, "--products=12", "--products=0"),
    "logging_on_one_rank": Planted(
        "DD208", CULPRIT, "--log-every=1", "--width=1024 --layers=4 --log-every=40", module=WITH_TENSORBOARD
    ),
    "vain_search_for_unused": Planted(
        "DD802",
        EVERYBODY,
        "--width=1024 --layers=4 --find-unused",
        "--width=1024 --layers=4 --find-unused --spare",
        info=True,
    ),
    "updates_skipped": Planted("DD1102", EVERYBODY, "--scale --overflow-every=4", "--scale --clip=unscaled"),
    "clipped_while_scaled": Planted("DD1104", EVERYBODY, "--scale --clip=scaled", "--scale --overflow-every=40"),
    "workers_wait_for_storage": loader("DD130", CULPRIT, "--one-rank --read-ms=300", "--read-ms=10 --step-ms=200"),
    "workers_compute": loader("DD131", CULPRIT, "--one-rank --spin-ms=100", "--spin-ms=5 --step-ms=200"),
    "workers_sleep": loader("DD133", EVERYBODY, "--sleep-ms=300", "--sleep-ms=80 --step-ms=200 --workers=4"),
    "batches_taken_slowly": loader(
        "DD132",
        CULPRIT,
        "--one-rank --pixels=2000000",
        "--pixels=2000000 --as-tensor --step-ms=200",
        needs_cpus=True,
    ),
}
QUICK = ("slow_input_on_one_rank",)
"""The others run in ``make test-long``."""


def case(name: str) -> Any:
    """Its fault; DeepSpeed compiles for minutes where it has not before."""
    marks = [] if name in QUICK else [pytest.mark.long]
    if PLANTED[name].module == WITH_DEEPSPEED:
        marks.append(pytest.mark.timeout(BUILD_LIMIT_S + LIMIT_S))
    return pytest.param(name, marks=marks, id=name)


CASES = [case(name) for name in PLANTED]
TWINS = [case(name) for name, planted in PLANTED.items() if planted.healthy is not None]


def diagnosed(folder: Path, planted: Planted, options: str) -> Diagnosis:
    """Record the job with *options* and diagnose what it left."""
    folder.mkdir(exist_ok=True)
    out = folder / "runs"
    python, variables, own = PYTHON, {}, [f"--out={folder}"]
    if planted.module:
        python = python_with(planted.module)
    if planted.module == WITH_DEEPSPEED:
        variables, own = {**deepspeed_environment(python), "OMP_WAIT_POLICY": "active"}, []
    job = [python, *TORCHRUN[1:], "--standalone", "--nproc-per-node=2", str(JOBS / f"{planted.job}.py"), *own]
    watched = recorded(out, "--no-report", "--sample-interval=0.25")
    done = run([*watched, *job, *options.split()], cwd=folder, env=environment(**variables))
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-4000:]
    return diagnose(load([str(only_run(out))]))


def alarms(diagnosis: Diagnosis) -> list[Finding]:
    """Findings worth acting on, but for the machine's own work."""
    return [one for one in diagnosis.findings if one.severity is not Severity.INFO and one.rule != TOO_FEW_CPUS]


def first_finding(folder: Path, planted: Planted) -> tuple[Finding, list[tuple[str, str]]]:
    """The first finding about the fault, and all that were found; beside a remark nothing is worth acting on."""
    for attempt in range(TRIES if planted.needs_cpus else 1):
        diagnosis = diagnosed(folder / str(attempt), planted, planted.faulty)
        worth = alarms(diagnosis)
        found = list(diagnosis.findings) if planted.info else worth
        shown = [(one.rule, one.title) for one in found]
        assert not (planted.info and worth), shown
        mine = [one for one in found if one.rule == planted.rule] if planted.info else found
        crowded = planted.needs_cpus and any(one.rule == TOO_FEW_CPUS for one in diagnosis.findings)
        if not crowded or (mine and mine[0].rule == planted.rule):
            assert mine, shown
            return mine[0], shown
    pytest.skip(f"others took the CPUs from the job each time: {shown}")


@pytest.mark.parametrize("name", CASES)
def test_the_fault_comes_first(tmp_path: Path, name: str) -> None:
    planted = PLANTED[name]
    found, shown = first_finding(tmp_path, planted)
    assert found.rule == planted.rule, shown
    assert found.culprits.ranks == planted.ranks, shown


@pytest.mark.long
@pytest.mark.parametrize("name", TWINS)
def test_its_healthy_twin_is_quiet(tmp_path: Path, name: str) -> None:
    planted = PLANTED[name]
    diagnosis = diagnosed(tmp_path, planted, planted.healthy or "")
    shown = [(one.rule, one.title) for one in alarms(diagnosis)]
    assert shown == []
    if planted.info:
        assert planted.rule not in [one.rule for one in diagnosis.findings], "nor is it remarked"
    assert (diagnosis.coverage.ranks_seen, len(diagnosis.coverage.steps) > 5) == ((0, 1), True), "little was seen"
