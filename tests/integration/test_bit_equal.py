"""A recorded training computes the same to the bit: losses, gradients, parameters, and the state of random generators
(torch's, Python's, numpy's; those of loader workers through the batches they draw)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddiag.schema.folder import find_processes
from tests.integration.comm import TIERS
from tests.integration.deepspeed_ops import deepspeed_environment, python_with
from tests.integration.recording import JOBS
from tests.integration.running import PYTHON, environment, only_run, recorded, run
from tests.shared import other_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("bits"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux"),
]
RANKS = 2
_bare: dict[tuple[str, str], list[dict[str, Any]]] = {}
"""What each kind computes without a recorder, by (kind, python)."""


def bits(folder: Path, kind: str, *, tier: str | None, python: str = PYTHON) -> list[dict[str, Any]]:
    """What each rank computed, with the recorder in *tier* or without one."""
    folder.mkdir()
    start = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    job = [*start, str(JOBS / "bits.py"), str(folder), kind]
    command = job if tier is None else [*recorded(folder / "runs", "--no-report"), *job]
    given = deepspeed_environment(python) if kind == "zero2" else {}
    done = run(command, cwd=folder, env=environment(DDIAG_TIER=tier or "", **given))
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-4000:]
    if tier is not None:
        assert _tiers(only_run(folder / "runs")) == {tier}
    return [json.loads((folder / f"bits{rank}.json").read_text()) for rank in range(RANKS)]


def _tiers(run_folder: Path) -> set[str]:
    """Tiers that were at work; one that begins to look at some steps only says so in a second fact."""
    facts = [json.loads(line) for one in find_processes(run_folder) for line in one.facts.read_text().splitlines()]
    return {str(fact["tier"]).removesuffix("-sampled") for fact in facts if fact["kind"] == "tier"}


def bare(folder: Path, kind: str, python: str = PYTHON) -> list[dict[str, Any]]:
    if (kind, python) not in _bare:
        _bare[kind, python] = bits(folder, kind, tier=None, python=python)
    return _bare[kind, python]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp2", marks=pytest.mark.long)])
def test_recording_changes_no_bit(tmp_path: Path, kind: str, tier: str) -> None:
    assert bits(tmp_path / "recorded", kind, tier=tier) == bare(tmp_path / "bare", kind)


@pytest.mark.long
def test_a_seed_makes_a_difference_that_would_show(tmp_path: Path) -> None:
    """The comparison compares something: ranks draw different noise, so all they hold but parameters differs."""
    first, second = bare(tmp_path / "bare", "ddp")
    assert first["parameters"] == second["parameters"], "DDP keeps replicas alike"
    assert first["losses"] != second["losses"]
    assert first["random states"] != second["random states"]
    assert first["gradients"] == second["gradients"], "DDP averages them"
    updates = len(first["losses"]) // 2
    assert len(set(first["gradients"])) == updates > 6, "more than a tier looks at in a row"
    for generator in ("random states", "python's", "numpy's"):
        assert len(set(first[generator])) == 2 * updates


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_hooks_of_torch_2_14_change_no_bit(tmp_path: Path, kind: str) -> None:
    python = str(other_python(".venv-torch214"))
    recorded_bits = bits(tmp_path / "recorded", kind, tier="hooks", python=python)
    assert recorded_bits == bare(tmp_path / "bare", kind, python)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("tier", TIERS)
def test_zero_2_changes_no_bit(tmp_path: Path, tier: str) -> None:
    python = python_with("deepspeed")
    assert bits(tmp_path / "recorded", "zero2", tier=tier, python=python) == bare(tmp_path / "bare", "zero2", python)
