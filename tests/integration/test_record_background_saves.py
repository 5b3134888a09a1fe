"""Checkpoints saved in the background: a second thread, or a process, that communicates while the training does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag import api
from tests.integration.comm import TIERS, agrees_where_it_looked
from tests.integration.recording import RankRecording, record

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
OWN_THREAD = "steps while torch.distributed.checkpoint.async_save saves in a thread"


def overlapping(rank: RankRecording) -> set[int]:
    """Steps in which a thread was about to save, or was not done yet when they began."""
    unfinished = rank.truth["unfinished"]
    return {*rank.truth["saves"], *(step + 1 for step, saves in enumerate(unfinished[:-1]) if saves)}


def undisturbed(rank: RankRecording) -> set[int]:
    """Steps in which no save began and before which all were done for a whole step, at whose end that is noticed."""
    unfinished, steps = rank.truth["unfinished"], range(2, len(rank.steps))
    return {step for step in steps if not unfinished[step - 2] and not unfinished[step - 1]} - {*rank.truth["saves"]}


@pytest.mark.parametrize("looks", ["", "every"])
def test_a_thread_that_saves_holds_the_tier_while_it_does(tmp_path: Path, looks: str) -> None:
    (tmp_path / "saved").mkdir()
    recording = record(tmp_path, "background_saves", str(tmp_path / "saved"), *looks.split(), tier="dispatch")
    assert recording.errors == []
    for rank in recording.ranks:
        assert rank.truth["results"] == ["Metadata"] * 3
        assert rank.facts_of("tier_off") == []
        assert [OWN_THREAD in fact["blind"] for fact in rank.facts_of("tier")] == [False, True]
        looked, overlap = agrees_where_it_looked(rank), overlapping(rank)
        assert len(overlap) >= 8
        assert {0, 1} <= looked
        assert looked.isdisjoint(overlap)
        if looks:
            again = undisturbed(rank)
            assert len(again) >= 8
            assert again <= looked
    assert OWN_THREAD in " ".join(api.load([str(recording.run)]).coverage.notes)


@pytest.mark.parametrize("tier", TIERS)
def test_a_process_that_saves_leaves_no_recording(tmp_path: Path, tier: str) -> None:
    """It joins a group of its own under the number of the rank it saves for; the training is looked at as ever."""
    (tmp_path / "saved").mkdir()
    recording = record(tmp_path, "background_saves", str(tmp_path / "saved"), "every", "process", tier=tier)
    assert recording.errors == []
    assert [rank.files.rank for rank in recording.ranks] == [0, 1]
    for rank in recording.ranks:
        assert rank.truth["results"] == ["Metadata"]
        assert len(rank.facts_of("tier")) == 1
        assert agrees_where_it_looked(rank) == {*range(len(rank.steps))}
