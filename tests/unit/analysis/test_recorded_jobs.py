"""Real training on gloo, recorded now with torch.profiler, against what the training script knows about itself."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import polars as pl
import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.collectives import match
from ddiag.analysis.grad_buckets import grad_buckets
from ddiag.analysis.late_ranks import late_ranks
from ddiag.analysis.shard_units import shard_units
from ddiag.analysis.steps import find_steps
from ddiag.ingest import load
from ddiag.model.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
SCRIPT = Path(__file__).with_name("record_gloo_job.py")
WORLD = 2


@cache
def recorded(strategy: str) -> tuple[Run, dict[str, float]]:
    folder = mkdtemp(prefix=f"ddiag-{strategy}-")
    subprocess.run(
        [sys.executable, str(SCRIPT), strategy, str(WORLD), folder], check=True, capture_output=True, timeout=150
    )
    truth = json.loads(Path(folder, "truth.json").read_text())
    return load([str(Path(folder, f"rank{rank}.json")) for rank in range(WORLD)], jobs=1), truth


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_every_call_is_matched_and_the_pausing_rank_is_late_on_the_host(strategy: str) -> None:
    run, truth = recorded(strategy)
    windows, acts = find_steps(run), activity(run)
    found = match(run, windows, acts)
    assert found is not None
    assert found.matched_ranks == WORLD
    assert found.table["matched"].all()
    assert not found.timed_on_device
    late = late_ranks(run, windows, acts, found)
    assert late is not None
    rows = {row["rank"]: row for row in late.table.iter_rows(named=True)}
    assert rows[1]["blame_share"] > 0.6
    assert late.persistent_rank == 1
    assert rows[1]["cause"] == "host"
    assert rows[1]["host_ms"] > 0.5 * truth["pause_ms"]
    waited = found.table.filter(pl.col("rank") == 0).group_by("step").agg(pl.col("wait_ms").max())
    assert waited["wait_ms"].to_numpy().min() > 0.5 * truth["pause_ms"]


def test_ddp_reduces_all_gradients_once_per_micro_batch() -> None:
    run, truth = recorded("ddp")
    windows, acts = find_steps(run), activity(run)
    found = grad_buckets(run, windows, acts, match(run, windows, acts))
    assert found is not None
    assert int(found.table["bytes"].sum()) == truth["gradient_bytes"]
    assert (found.accumulation, found.synced_backwards) == (truth["micro_batches"], truth["micro_batches"])
    assert found.count_per_step == found.table.height * truth["micro_batches"]
    assert found.issued == "backward"
    assert shard_units(run, windows, acts, match(run, windows, acts)) is None


def test_fsdp_gathers_every_layer_twice_and_scatters_it_once() -> None:
    run, truth = recorded("fsdp2")
    windows, acts = find_steps(run), activity(run)
    calls = match(run, windows, acts)
    found = shard_units(run, windows, acts, calls)
    assert found is not None
    assert found.framework == "fsdp2"
    assert found.gathers_per_step == truth["gathers"]
    assert found.median_gather_bytes == found.largest_gather_bytes == truth["gather_bytes"]
    scatters = found.table.filter(pl.col("op") != "all_gather")
    assert scatters["count_per_step"].to_list() == [truth["scatters"]]
    assert grad_buckets(run, windows, acts, calls) is None
