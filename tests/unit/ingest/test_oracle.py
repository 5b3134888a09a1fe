"""Device time of 45 real traces against sums computed independently of ddiag and of HTA."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ddiag.analysis.intervals import intersect, total, union
from ddiag.ingest import load
from tests.shared import SHARED, shared_data

TOLERANCE_US = 0.1
EXPECTED: dict[str, dict[str, Any]] = (
    json.loads((SHARED / "data" / "independent_expected.json").read_text()) if SHARED.is_dir() else {}
)

NARROW_PATTERN = (
    "the oracle's comm_us and comp_us count by HTA's pattern ^nccl.*Kernel; ddiag also counts symmetric-memory "
    "multimem_all_reduce kernels as communication, as the oracle's broad pattern does"
)
DIFFERENCES = {"AMD-AGI+TraceLens/b200/eager_trace.json.gz": {"comp_us": NARROW_PATTERN, "comm_us": NARROW_PATTERN}}
"""Every figure that differs, with the reason; a difference that is not listed, or no longer there, fails."""


def device_time(path: str) -> dict[str, float]:
    run = load([path])
    kernels, copies = run.table("kernels"), run.table("copies")
    starts = np.concatenate((kernels["start_ns"].to_numpy(), copies["start_ns"].to_numpy()))
    ends = np.concatenate((kernels["end_ns"].to_numpy(), copies["end_ns"].to_numpy()))
    talks = (kernels["kind"] == "communication").to_numpy()
    kernel_starts, kernel_ends = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    communication = union(kernel_starts[talks], kernel_ends[talks])
    compute = union(kernel_starts[~talks], kernel_ends[~talks])
    busy = total(union(starts, ends))
    window = int(ends.max() - starts.min()) if len(starts) else 0
    overlapped = total(intersect(communication, compute))
    ns = {
        "window_us": window, "busy_us": busy, "idle_us": window - busy, "comp_us": total(compute),
        "comm_us": total(communication), "comm_us_broad_pattern": total(communication),
        "overlap_us_broad": overlapped, "exposed_comm_us_broad": total(communication) - overlapped,
    }  # fmt: skip
    return {"gpu_events": len(starts), **{name: value / 1000 for name, value in ns.items()}}


def test_the_oracle_is_there() -> None:
    shared_data("independent_expected.json")
    assert len(EXPECTED) == 45


@pytest.mark.parametrize("trace", EXPECTED)
def test_device_time_equals_the_oracle(trace: str) -> None:
    found = device_time(str(shared_data(*trace.split("/"))))
    expected = EXPECTED[trace]
    differing = {name for name, value in found.items() if abs(value - expected[name]) > TOLERANCE_US}
    assert differing == set(DIFFERENCES.get(trace, {})), {name: (found[name], expected[name]) for name in differing}


@pytest.mark.parametrize("trace", EXPECTED)
def test_rank_and_world_equal_the_oracle(trace: str) -> None:
    run = load([str(shared_data(*trace.split("/")))])
    row = run.table("ranks").row(0, named=True)
    if EXPECTED[trace]["rank"] is not None:
        assert (row["rank"], row["rank_known"]) == (EXPECTED[trace]["rank"], True)
    assert row["world_size"] == EXPECTED[trace]["world"]


def test_every_file_of_the_collection_is_read_or_refused_in_one_line() -> None:
    coverage = load([str(shared_data())]).coverage
    skipped = [note for note in coverage.notes if " skipped" in note]
    lines = [*skipped, *(why for _, why in coverage.unreadable)]
    assert not any("\n" in line for line in lines)
    many = sum(int(note.split()[0]) for note in skipped if " files skipped (" in note)
    single = sum(" files skipped (" not in note for note in skipped)
    files = sum(1 for path in shared_data().rglob("*") if path.is_file())
    assert len(coverage.inputs) >= 50
    assert len(coverage.inputs) + len(coverage.unreadable) + many + single == files
