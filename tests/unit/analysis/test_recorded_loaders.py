"""Loader workers of recordings: what is read of them, and what the diagnosis makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddiag.analysis import derive
from ddiag.api import diagnose, load
from ddiag.model.run import Run
from ddiag.model.signals_recorded import LoaderWorkers
from ddiag.schema.samples import encode, header
from tests.recordings import WALL_NS, Plan, healthy, write_run

TICK_NS = 10**8
WORKERS = 2


def recorded(
    folder: Path, plans: tuple[Plan, ...], *, runnable: int, blocked: int, cpu_ns: int, loaders: int = WORKERS
) -> Run:
    """*plans*, with the same sample every 0.1 s: of rank 1's workers *cpu_ns* more each time; rank 0's sleep."""
    lines: list[dict[str, Any]] = [header(host="node0", wall_ns=WALL_NS, interval_s=0.1, cpus=16)]
    for number in range(30):
        rows = []
        for rank in (0, 1):
            mine = [loaders, number * cpu_ns, runnable, blocked] if rank else [loaders, 0, 0, 0]
            spent = mine[1]
            rows.append([100 + rank, rank, number * TICK_NS, 1 << 30, 8, "R", 0, 0, loaders, spent, 1, 0, *mine])
        cpu = {"running": 2, "busy_ns": number * 4 * TICK_NS}
        lines.append({"t": WALL_NS + number * TICK_NS, "kind": "sample", "ranks": rows, "cpu": cpu})
    run = write_run(folder / "run", *plans)
    (run / "nodes").mkdir()
    (run / "nodes" / "node0.samples").write_bytes(b"".join(encode(line) for line in lines))
    return load([str(run)])


def starving(**changes: Any) -> tuple[Plan, ...]:
    """Rank 1 waits 60 ms for each batch, and finds no batch ready."""
    late = replace(Plan(rank=1, steps=20, late_ms=60.0, queue=0), **changes)
    return Plan(rank=0, steps=20, peer_late_ms=60.0), late


def rules(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.rule, one.culprits.ranks) for one in diagnose(run).findings if one.rule.startswith("DD13")]


def test_what_the_workers_did_is_read_from_the_samples(tmp_path: Path) -> None:
    run = recorded(tmp_path, starving(), runnable=1, blocked=1, cpu_ns=TICK_NS)
    seen = derive(run).get(LoaderWorkers)
    assert seen is not None
    idle, busy = seen.table.sort("rank").to_dicts()
    assert (busy["rank"], busy["host"], busy["workers"]) == (1, "node0", WORKERS)
    assert busy["input_ms"] == pytest.approx(62.0)
    assert busy["typical_ms"] == pytest.approx(62.0)
    assert (busy["empty_share"], idle["empty_share"]) == (1.0, 0.0)
    assert (busy["cpu_share"], busy["runnable_share"], busy["blocked_share"]) == pytest.approx((0.5, 0.5, 0.5))
    assert (idle["cpu_share"], idle["runnable_share"], idle["blocked_share"]) == (0.0, 0.0, 0.0)
    assert busy["children_share"] == pytest.approx(0.5)
    assert busy["samples"] == pytest.approx(seen.seconds / 0.1, abs=2)


@pytest.mark.parametrize(
    ("rule", "runnable", "blocked", "cpu_ns"),
    [("DD130", 0, 2, 0), ("DD131", 2, 0, 2 * TICK_NS), ("DD133", 0, 0, 0)],
)
def test_each_state_gives_its_finding_on_the_rank_that_has_it(
    tmp_path: Path, rule: str, runnable: int, blocked: int, cpu_ns: int
) -> None:
    run = recorded(tmp_path, starving(), runnable=runnable, blocked=blocked, cpu_ns=cpu_ns)
    assert rules(run) == [(rule, (1,))]
    assert diagnose(run).findings[0].rule == rule


def test_batches_that_lie_ready_are_taken_slowly(tmp_path: Path) -> None:
    run = recorded(tmp_path, starving(queue=4), runnable=0, blocked=0, cpu_ns=0)
    assert rules(run) == [("DD132", (1,))]


def test_workers_that_keep_up_are_left_in_peace(tmp_path: Path) -> None:
    run = recorded(tmp_path, healthy(steps=20, queue=0), runnable=2, blocked=0, cpu_ns=2 * TICK_NS)
    assert rules(run) == []


def test_a_second_idle_loader_changes_nothing(tmp_path: Path) -> None:
    run = recorded(tmp_path, starving(), runnable=2, blocked=0, cpu_ns=2 * TICK_NS, loaders=2 * WORKERS)
    assert rules(run) == [("DD131", (1,))]


@pytest.mark.parametrize("loaders", [0, WORKERS - 1, 3 * WORKERS])
def test_workers_that_were_not_all_seen_say_nothing(tmp_path: Path, loaders: int) -> None:
    run = recorded(tmp_path, starving(), runnable=2, blocked=0, cpu_ns=2 * TICK_NS, loaders=loaders)
    assert rules(run) == []


def test_one_ask_of_several_does_not_tell_how_full_the_queue_is(tmp_path: Path) -> None:
    run = recorded(tmp_path, starving(micro_steps=2), runnable=2, blocked=0, cpu_ns=2 * TICK_NS)
    assert rules(run) == []


def test_a_loader_in_the_training_process_has_no_workers(tmp_path: Path) -> None:
    run = recorded(tmp_path, starving(), runnable=2, blocked=0, cpu_ns=2 * TICK_NS)
    alone = run.table("step_summaries").with_columns(loader_workers=0).cast({"loader_workers": int})
    assert derive(replace(run, tables={**run.tables, "step_summaries": alone})).get(LoaderWorkers) is None
