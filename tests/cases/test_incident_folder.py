"""A folder with everything of one night thrown in: one story, one culprit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.api import examine, load, rules_for
from ddiag.model.signals_incident import Story
from ddiag.rulekit.diagnosis import Status
from tools.synth.incident import Night, write_incident


@pytest.mark.parametrize("kind", ["xid", "oom"])
@pytest.mark.parametrize(
    "seed", [0, 1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_the_bad_node_is_found_among_many(tmp_path: Path, kind: str, seed: int) -> None:
    truth = write_incident(tmp_path / "night", Night(nodes=4, kind=kind, seed=seed, lines=200, steps=30))
    found = examine(load([str(tmp_path / "night")]), rules_for())
    first = found.diagnosis.findings[0]
    assert (first.root_cause, first.culprits.ranks, first.culprits.hosts) == (
        truth.root_cause,
        (truth.rank,),
        (truth.host,),
    )
    assert found.diagnosis.verdict.status is Status.CRASHED
    story = found.signals.get(Story)
    assert story is not None
    assert len(story.lines[-1].ranks) == 31 or any(len(line.ranks) == 31 for line in story.lines)


def test_the_bad_rank_is_blamed_by_nobody_else(tmp_path: Path) -> None:
    truth = write_incident(tmp_path / "night", Night(nodes=2, seed=7, lines=100, steps=20))
    diagnosis = examine(load([str(tmp_path / "night")]), rules_for()).diagnosis
    for finding in diagnosis.findings:
        assert set(finding.culprits.ranks) <= {truth.rank}, finding.title
