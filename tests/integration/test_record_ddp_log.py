"""DDP's account of itself: what it measured, and whether its search for unused parameters ever found one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.api import diagnose, load
from tests.integration.recording import record

pytest.importorskip("torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]


@pytest.mark.parametrize("kind", ["all", "some"])
def test_what_ddp_logs_is_kept(tmp_path: Path, kind: str) -> None:
    recording = record(tmp_path, "unused", kind)
    assert recording.errors == []
    assert len(recording.ranks) == 2
    for rank in recording.ranks:
        true = rank.truth["log"]
        (log,) = rank.facts_of("ddp_log")
        # Torch measures nothing between its tenth and its hundredth iteration.
        assert log["iteration"] == true["iteration"]
        assert log["communication_ns"] == true["avg_backward_comm_time"] > 0
        assert log["overlap_ns"] == true["avg_backward_compute_comm_overlap_time"]
        assert (log["forward_ns"], log["backward_ns"]) == (
            true["avg_forward_compute_time"],
            true["avg_backward_compute_time"],
        )
        # Of the iteration before the one measured last; without the branch its two parameters had no gradients.
        assert sorted(log["ready_order"]) == ([0, 1, 2, 3] if kind == "all" else [0, 1])
        assert (log["index"], log["passes"], log["step"]) == (0, 12, 11)
        found = {fact["bytes"] for fact in rank.facts_of("ddp_unused")}
        assert found == ({0} if kind == "all" else {0, rank.truth["branch_bytes"]})
    rules = [one.rule for one in diagnose(load([str(recording.run)])).findings]
    assert ("DD802" in rules) == (kind == "all")
