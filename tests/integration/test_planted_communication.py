"""Real jobs whose communication is exposed, and jobs that only look like it: is the training stopped for moving data?

The machine that runs the tests has work of its own: what it does to a job (DD209) is not held against the diagnosis.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddiag.api import examine, load, rules_for
from ddiag.model.signals import Collectives
from ddiag.model.signals_recorded import StoodStill
from ddiag.rulekit import Finding, Severity
from tests.integration.recording import JOBS
from tests.integration.running import TORCHRUN, environment, only_run, recorded, run

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.xdist_group("planted"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]

EXPOSED, TOO_FEW_CPUS = "DD402", "DD209"
LATE = "DD50"


def diagnosed(folder: Path, *options: str) -> tuple[list[Finding], StoodStill]:
    """What is worth acting on in a job with *options*, but for the machine's own work, and what stopped its ranks."""
    out = folder / "runs"
    job = [*TORCHRUN, "--standalone", "--nproc-per-node=2", str(JOBS / "planted_communication.py"), *options]
    done = run([*recorded(out, "--no-report"), *job], cwd=folder, env=environment())
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-4000:]
    found = examine(load([str(only_run(out))]), rules_for())
    calls = found.signals.get(Collectives)
    assert calls is not None
    assert calls.matched_ranks == 2
    assert calls.stood_still is not None
    worth = [one for one in found.diagnosis.findings if one.severity is not Severity.INFO and one.rule != TOO_FEW_CPUS]
    return worth, calls.stood_still


@pytest.mark.parametrize("reduce", ["after", "hooks"])
def test_gradients_reduced_one_by_one_are_exposed(tmp_path: Path, reduce: str) -> None:
    found, still = diagnosed(tmp_path, reduce)
    shown = [(one.rule, one.title) for one in found]
    assert found, still
    assert found[0].rule == EXPOSED, shown
    assert found[0].culprits.ranks == (), "nobody in particular"
    assert found[0].cost.ms_per_step == pytest.approx(still.blocked_ms, rel=0.01)


def test_its_healthy_twin_reduces_beside_backward(tmp_path: Path) -> None:
    found, still = diagnosed(tmp_path, "ddp")
    assert (still.transfer_ms > 0, still.blocked_ms) == (True, 0.0)
    assert [(one.rule, one.title) for one in found] == []


def test_who_waits_for_a_late_rank_does_not_communicate(tmp_path: Path) -> None:
    """Nearly all time in calls is spent waiting; the late rank is named, and what moves data is not."""
    found, _ = diagnosed(tmp_path, "ddp", "--late-ms=150")
    shown = [(one.rule, one.title) for one in found]
    assert EXPOSED not in [one.rule for one in found], shown
    assert [one.culprits.ranks for one in found if one.rule.startswith(LATE)] == [(1,)], shown


def test_a_number_that_all_ranks_tell_each_other_late_is_no_exposed_communication(tmp_path: Path) -> None:
    """After the update, of four bytes: all of it is waiting."""
    found, still = diagnosed(tmp_path, "none", "--tell", "--late-ms=150")
    assert still.blocked_ms == 0.0
    assert EXPOSED not in [one.rule for one in found]
    assert {one.culprits.ranks for one in found if one.rule.startswith(LATE)} <= {(1,)}


def test_what_an_evaluation_gathers_is_not_the_trainings(tmp_path: Path) -> None:
    found, still = diagnosed(tmp_path, "none", "--evaluate-every=1")
    assert EXPOSED not in [one.rule for one in found], still
