"""What a tier must not do: grow, fail loudly, or be needed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from ddiag.capture.native import build
from ddiag.capture.native.build import cached
from tests.integration.comm import TIERS, torch
from tests.integration.recording import record
from tests.shared import other_python

MIB = 1 << 20


@pytest.mark.long
def test_where_there_is_a_compiler_the_default_tier_is_the_native_one(tmp_path: Path) -> None:
    """Else all that is tested with the kernel would be skipped without a word."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no g++")
    assert cached(torch.version).exists(), "python -m ddiag.capture.native build --if-missing"
    (rank,) = record(tmp_path, "flood", "10", ranks=1).ranks
    assert rank.tier == "native"


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("tier", [*TIERS, "hooks"])
def test_memory_stays_flat(tmp_path: Path, tier: str) -> None:
    """The ring has gone round after the first quarter; from then on nothing may grow. Natively over 10⁶ collectives."""
    each = 250_000 if tier == "native" else 50_000
    python = str(other_python(".venv-torch214")) if tier == "hooks" else sys.executable
    recording = record(tmp_path, "flood", str(each), ranks=1, tier=tier, python=python, timeout_s=900)
    (rank,) = recording.ranks
    assert rank.tier == tier
    assert len(rank.collectives) > 1000
    seen = rank.truth["resident"]
    assert seen[-1] - seen[1] < 2 * MIB
    assert recording.errors == []


@pytest.mark.slow
def test_a_library_that_cannot_be_loaded_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    library = cached(torch.version)
    library.parent.mkdir(parents=True)
    library.write_bytes(b"not a library")
    recording = record(tmp_path, "flood", "10", ranks=1, environment={build.CACHE_VARIABLE: str(tmp_path / "cache")})
    (rank,) = recording.ranks
    assert rank.tier == "dispatch"
    assert len(rank.collectives) == 40
    assert [error["where"] for error in recording.errors] == ["tier native"]
    assert "ddiag" not in recording.output


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("late_s", [0.2, 2.0])
@pytest.mark.parametrize("environment", [".venv-torch24", ".venv-torch214", ".venv"])
def test_a_group_is_destroyed_while_others_are_late_for_its_collectives(
    tmp_path: Path, environment: str, late_s: float
) -> None:
    """Torch 2.4 joins the group's threads with the GIL held: one that still had to call us would hang the process."""
    python = str(other_python(environment))
    tier = "hooks" if environment == ".venv-torch214" else "dispatch"
    recording = record(tmp_path, "leave", str(late_s), tier=tier, python=python, timeout_s=300)
    assert recording.output.count("20 calls were left to end by themselves") == 2
    for rank in recording.ranks:
        assert rank.tier == tier
        assert len(rank.collectives) == 20
    assert recording.errors == []
