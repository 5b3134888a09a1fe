"""More real jobs with one fault planted, beside those of ``test_planted.py``: rules that need a job of their own.

Not here, because only a device gives their evidence: DD406 (bandwidth is judged by calls timed on devices, which name
what their links give; a host's spans hold turns at its processors), DD604 (torch pins host memory, and counts it, only
beside a device).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddiag.analysis import derive
from ddiag.api import load
from ddiag.model.signals import InputWait
from ddiag.rulekit import Finding
from tests.integration.running import only_run
from tests.integration.test_planted import EVERYBODY, LIMIT_S, Planted, alarms, diagnosed, loader

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.xdist_group("planted"),
    pytest.mark.timeout(LIMIT_S),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]

LARGE = "--width=1024 --layers=20 --steps=12 --no-sync"
"""80 MiB of gradients. The twin reduces them less often, so that two busy CPUs send them in little of a step."""
PLANTED = {
    "one_bucket_of_all_gradients": Planted(
        "DD404", EVERYBODY, f"{LARGE} --accumulate=3 --bucket-mb=1000", f"{LARGE} --accumulate=6"
    ),
    "workers_too_few": loader(
        "DD103", EVERYBODY, "--sleep-ms=300 --workers=3 --step-ms=40", "--sleep-ms=300 --workers=3 --step-ms=200"
    ),
}
WORKERS = 3


def faulty(folder: Path, name: str) -> tuple[list[Finding], list[tuple[str, str]]]:
    """What is worth acting on, and how it reads."""
    found = alarms(diagnosed(folder, PLANTED[name], PLANTED[name].faulty))
    return found, [(one.rule, one.title) for one in found]


def test_one_bucket_of_all_gradients_comes_first(tmp_path: Path) -> None:
    found, shown = faulty(tmp_path, "one_bucket_of_all_gradients")
    assert found, "nothing"
    assert found[0].rule == "DD404", shown
    assert found[0].culprits.ranks == EVERYBODY
    seen = {one.label: one.value for one in found[0].evidence}
    assert seen["largest bucket"] == 20 * (1024 * 1024 + 1024) * 4, shown
    assert seen["reductions per backward"] == 1.0


def test_workers_that_are_too_few_show_as_waves_beneath_what_they_wait_for(tmp_path: Path) -> None:
    """They sleep, which the recorder sees and puts first; the waves are what comes of it, or the same once more."""
    found, shown = faulty(tmp_path, "workers_too_few")
    assert found, "nothing"
    assert found[0].rule == "DD133", shown
    assert found[0].culprits.ranks == EVERYBODY
    beneath = {one.rule for one in found if one.explained_by == "DD133"}
    assert "DD103" in {*beneath, *found[0].also_seen_by}, shown
    wait = derive(load([str(only_run(tmp_path / "runs"))])).get(InputWait)
    assert wait is not None
    assert wait.spike_period == WORKERS


@pytest.mark.parametrize("name", PLANTED)
def test_its_healthy_twin_is_quiet(tmp_path: Path, name: str) -> None:
    diagnosis = diagnosed(tmp_path, PLANTED[name], PLANTED[name].healthy or "")
    assert [(one.rule, one.title) for one in alarms(diagnosis)] == []
    assert (diagnosis.coverage.ranks_seen, len(diagnosis.coverage.steps) > 5) == ((0, 1), True), "little was seen"
