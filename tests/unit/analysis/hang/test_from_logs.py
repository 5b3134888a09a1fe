"""Verdicts from log lines, stacks and deaths, without any dump."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ddiag.analysis.hang.stall import stall
from ddiag.model.incident import FLIGHT_STATUS, Event, Stack
from ddiag.model.run import Coverage, Run
from ddiag.model.signals_incident import Death, Deaths, Events, Stacks, Stall

TRAINING = ("wait (/opt/torch/distributed/distributed_c10d.py:10)", "step (train.py:40)")


def timeout(rank: int, **fields: Any) -> Event:
    usual = {"group": "0", "group_desc": "default_pg", "group_rank": rank, "seq": 40, "op": "all_reduce"}
    return Event("c10d.watchdog_timeout", usual | {"numel_in": 512, "numel_out": 512} | fields, rank)


def judged(*events: Event, world: int = 4, tables: dict[str, pl.DataFrame] | None = None, **more: Any) -> Stall:
    run = Run(tables or {}, Coverage(ranks_expected=tuple(range(world))))
    found = stall(run, Events(events), more.get("deaths"), more.get("stacks"))
    assert found is not None
    return found


def test_no_line_about_waiting_is_no_stall() -> None:
    assert stall(Run({}), Events((Event("log.progress", {"step": 3}, 0),)), None, None) is None


@pytest.mark.parametrize("silent", [0, 2, 3])
def test_the_rank_without_a_line_is_a_suspect(silent: int) -> None:
    found = judged(*(timeout(rank) for rank in range(4) if rank != silent))
    assert (found.verdict, found.culprits, found.confidence) == ("suspect_by_absence", (silent,), "medium")


def test_an_excerpt_of_a_log_names_nobody() -> None:
    found = judged(timeout(3), timeout(9), world=64)
    assert (found.verdict, found.culprits) == ("undecided", ())


def test_of_several_silent_ranks_the_one_that_says_what_it_does_is_late() -> None:
    said = Event("log.phase", {"phase": "evaluate", "begin": True}, 1, text="running evaluation")
    found = judged(*(timeout(rank) for rank in range(4, 8)), said, world=8)
    assert (found.verdict, found.culprits, found.phase) == ("late", (1,), "evaluation")


def test_words_without_a_rank_count_for_rank_0_only_when_it_is_silent() -> None:
    said = Event("log.phase", {"phase": "tokenize", "begin": True}, text="Running tokenizer on dataset")
    assert judged(*(timeout(rank) for rank in (1, 2, 3)), said).cause == "setup_work"
    other = judged(*(timeout(rank) for rank in (0, 1, 2)), said)
    assert (other.culprits, other.cause) == ((3,), "unknown")


def test_a_group_rank_is_not_a_global_rank() -> None:
    waiting = Event("c10d.watchdog_timeout", {"group": "3", "group_rank": 0, "seq": 1, "op": "all_reduce"}, 2)
    assert 2 in judged(timeout(0), timeout(1), waiting).victims


def test_other_sizes_at_one_number_are_a_mismatch() -> None:
    found = judged(*(timeout(rank, numel_in=9 if rank == 0 else 512) for rank in range(4)))
    assert (found.verdict, found.culprits) == ("mismatch", (0,))


def test_everybody_in_one_call_blames_nobody() -> None:
    found = judged(*(timeout(rank) for rank in range(4)))
    assert (found.verdict, found.culprits, found.cause) == ("in_flight", (), "data_plane")


def test_a_status_behind_the_others_is_late() -> None:
    behind = Event("c10d.pg_status", {"group": "0", "last_enqueued": 39, "last_completed": 39}, 2)
    found = judged(*(timeout(rank) for rank in (0, 1)), behind)
    assert (found.verdict, found.culprits) == ("late", (2,))


def test_counts_of_ras_that_are_equal_blame_nobody_and_unequal_ones_name_who_lags() -> None:
    rows = {"rank": [0, 1, 2, 3], "group": ["c"] * 4, "origin": ["ras"] * 4}
    equal = FLIGHT_STATUS.conform(pl.DataFrame(rows | {"last_enqueued": [7, 7, 7, 7]}))
    assert judged(timeout(1), timeout(2), tables={"flight_status": equal}).verdict == "in_flight"
    lagging = FLIGHT_STATUS.conform(pl.DataFrame(rows | {"last_enqueued": [7, 7, 7, 6]}))
    found = judged(timeout(1), timeout(2), tables={"flight_status": lagging})
    assert (found.verdict, found.culprits, found.origin) == ("late", (3,), "ras")


def test_the_death_of_the_missing_rank_explains_the_stall() -> None:
    deaths = Deaths((Death("signal", 3, None, None, "killed by signal 9"),))
    found = judged(*(timeout(rank) for rank in range(3)), deaths=deaths)
    assert (found.verdict, found.culprits, found.cause) == ("dead", (3,), "dead")


def test_a_rank_that_waits_did_not_die_before() -> None:
    deaths = Deaths((Death("signal", 1, None, None, "killed by signal 6"),))
    found = judged(*(timeout(rank) for rank in range(3)), deaths=deaths)
    assert (found.verdict, found.culprits) == ("suspect_by_absence", (3,))


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (("read (loader.py:8)", "__next__ (/lib/python3/site-packages/torch/utils/data/dataloader.py:600)"), "input"),
        (("save_checkpoint (engine.py:3)", "main (train.py:9)"), "checkpoint"),
        (("compile_fx (/x/site-packages/torch/_inductor/compile_fx.py:3)", "main (train.py:9)"), "compile"),
        (("solve (solver.py:3)", "main (train.py:9)"), "user_code"),
    ],
)
def test_stacks_alone_name_the_one_that_does_something_else(frames: tuple[str, ...], phase: str) -> None:
    stacks = Stacks(tuple(Stack(frames if rank == 2 else TRAINING, rank, thread="MainThread") for rank in range(4)))
    found = judged(stacks=stacks)
    assert (found.verdict, found.culprits, found.phase) == ("late", (2,), phase)
    assert found.stacks[0] == ((2,), frames)


def test_a_desync_report_is_believed() -> None:
    report = Event("c10d.desync", {"lagging": [3], "never_joined": [], "started": {"40": [0, 1, 2]}})
    assert judged(timeout(0), report).culprits == (3,)


def test_fingerprints_of_many_pairs_are_a_vote() -> None:
    pairs = [
        {"ranks": [rank, 2], "ops": ["all_reduce", "broadcast"], "shapes": ["8", "8"], "dtypes": ["Float", "Float"]}
        for rank in (0, 1, 3)
    ]
    events = [Event("c10d.fingerprint_mismatch", pair | {"seqs": [5, 5]}) for pair in pairs]
    assert (judged(*events).verdict, judged(*events).culprits) == ("mismatch", (2,))
