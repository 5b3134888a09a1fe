"""Ranks that end without destroying their process groups end as they would without the recorder.

Those who call us at the end of a collective need an interpreter for it, which by then is gone.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddiag.schema.folder import find_processes
from tests.integration.comm import TIERS
from tests.integration.recording import BOOTSTRAP, JOBS
from tests.shared import other_python

ENDINGS = {"done": [0, 0], "raises": [1, 0], "exits": [3, 0]}
"""Exit codes of both ranks, by how the first one ends."""
ELSEWHERE = [
    (environment, tier)
    for environment, tiers in ((".venv-torch24", ("dispatch",)), (".venv-torch214", ("hooks", "dispatch")))
    for tier in ("", *tiers)
]


def ended(folder: Path, how: str, tier: str, python: str) -> list[int]:
    """Exit codes of both ranks; started one by one, since a launcher ends the others when one fails. No tier: bare."""
    (folder / "run").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    recorder = {"PYTHONPATH": str(BOOTSTRAP), "DDIAG_RUN": str(folder / "run"), "DDIAG_TIER": tier} if tier else {}
    command = [python, str(JOBS / "leave_pending.py"), str(folder), how, "4"]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **common, **recorder, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        print(rank.communicate(timeout=120)[0])  # shown, and searched for torch's own abort, when the test fails
    return [rank.returncode for rank in ranks]


def check(folder: Path, how: str, tier: str, python: str = sys.executable) -> None:
    assert ended(folder, how, tier, python) == ENDINGS[how]
    if tier:
        recorded = find_processes(folder / "run")
        assert sorted(one.rank for one in recorded) == [0, 1]
        facts = [json.loads(line) for one in recorded for line in one.facts.read_text().splitlines()]
        assert {fact["tier"] for fact in facts if fact["kind"] == "tier"} == {tier}
        assert not (folder / "run" / "errors.jsonl").exists()


@pytest.mark.parametrize("how", ["done", "raises"])
@pytest.mark.parametrize("tier", TIERS)
def test_a_rank_that_leaves_its_groups(tmp_path: Path, how: str, tier: str) -> None:
    check(tmp_path, how, tier)


@pytest.mark.long
@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize(("environment", "tier"), [*ELSEWHERE, (".venv", ""), (".venv", "dispatch")])
def test_with_every_torch_and_without_a_recorder(tmp_path: Path, how: str, environment: str, tier: str) -> None:
    check(tmp_path, how, tier, str(other_python(environment)) if environment != ".venv" else sys.executable)
