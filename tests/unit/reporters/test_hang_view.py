"""The on-call view: one sentence, one screen, the culprit first, whatever the size of the job."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import polars as pl
import pytest

from ddiag.model.incident import FLIGHT_STATUS, Event
from ddiag.model.run import Coverage, Run
from ddiag.model.signals import JobFacts, Signals
from ddiag.model.signals_incident import Events, GroupStand, Stall
from ddiag.reporters.hang_grid import groups_grid
from ddiag.reporters.hang_terminal import HangReporter
from ddiag.reporters.hang_view import HangView, hang_view
from ddiag.reporters.hang_words import headline, short_frame
from ddiag.rulekit.finding import Confidence
from tests.factories import make_signals
from tests.report_cases import make_diagnosis, make_finding

LOOP = "train (/app/train.py:88)"
WAITS = ("wait (/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:5)", "step (/app/train.py:40)")


def stand(ranks: int = 4, culprits: tuple[int, ...] = (2,), **more: Any) -> GroupStand:
    states = {rank: "absent" if rank in culprits else "started" for rank in range(ranks)}
    plain = GroupStand("0", "default_pg", tuple(range(ranks)), "coll", 4190, "all_reduce", state_of=states)
    return replace(plain, **more)


def stall(ranks: int = 4, culprits: tuple[int, ...] = (2,), **more: Any) -> Stall:
    """Rank 2 did not come to all_reduce 4190."""
    victims = tuple(rank for rank in range(ranks) if rank not in culprits)
    stacks = ((culprits, ("load (/app/data.py:7)", LOOP)), (victims, WAITS))
    plain = Stall("late", culprits, victims, "high", "default_pg", 4190, "all_reduce", "rank 2 did not come")
    plain = replace(plain, where=stacks[0][1][0], phase="input", groups=(stand(ranks, culprits),), stacks=stacks)
    return replace(plain, **more)


def signals(one: Stall, *events: Event) -> Signals:
    ranks = tuple(sorted({*one.culprits, *one.victims}))
    facts = JobFacts(ranks, len(ranks), "other", hosts=("node-a",), host_of=dict.fromkeys(ranks, "node-a"))
    families = {Stall: one, JobFacts: facts, Events: Events(events)}
    return Signals(MappingProxyType(families))


def view(one: Stall, *events: Event, run: Run | None = None) -> HangView:
    found = hang_view(signals(one, *events), run or Run({}))
    assert found is not None
    return found


def screen(
    one: Stall,
    *,
    width: int = 80,
    run: Run | None = None,
    confidence: Confidence = Confidence.HIGH,
    **more: Any,
) -> str:
    found = make_diagnosis([replace(make_finding(), confidence=confidence)], ranks=4)
    return HangReporter(width=width, view=view(one, run=run), **more).render(found, signals(one))


# -- the sentence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (
            stall(),
            "Rank 2 (node-b, local 1) waits for its data, at data.py:7 in load; 3 ranks wait for it in all_reduce "
            "#4190 of the default group",
        ),
        (
            stall(phase="gil"),
            "Rank 2 (node-b, local 1) sleeps in C code and holds Python's GIL, at data.py:7 in load; 3 ranks wait "
            "for it in all_reduce #4190 of the default group",
        ),
        (
            stall(verdict="dead", where=None),
            "Rank 2 (node-b, local 1) is dead; 3 ranks wait for it in all_reduce #4190 of the default group",
        ),
        (
            stall(verdict="mismatch", mismatch="all_reduce on 3 ranks, barrier on rank 2"),
            "Rank 2 (node-b, local 1) does not call what the others call, at data.py:7 in load: all_reduce on 3 ranks, "
            "barrier on rank 2; it is call #4190 of the default group",
        ),
        (
            stall(ranks=2, culprits=(1,), where=None, phase=""),
            "Rank 1 did not come; 1 rank waits for it in all_reduce #4190 of the default group",
        ),
        (
            stall(culprits=(), verdict="undecided", why="all are in the same call"),
            "All are in the same call",
        ),
    ],
)
def test_the_sentence_names_who_does_what_and_who_waits(one: Stall, sentence: str) -> None:
    assert headline(one, {2: "node-b, local 1"}) == sentence


def test_a_deadlock_names_both_sides() -> None:
    one = stall(culprits=(0, 1), verdict="deadlock", cycle=((0, "send 0 -> 1"), (1, "send 1 -> 0")))
    assert headline(one, {}) == (
        "Ranks 0 and 1 wait for each other: rank 0 in send 0 -> 1, rank 1 in send 1 -> 0; 2 ranks wait behind them"
    )


def test_control_characters_of_evidence_do_not_steer_the_terminal() -> None:
    assert "\x1b" not in headline(stall(where="evil\x1b[2J (/app/a.py:1)"), {})


@pytest.mark.parametrize(
    ("frame", "short"),
    [
        ("load (/app/data.py:7)", "load  data.py:7"),
        ("wait (/v/lib/python3.11/site-packages/torch/distributed/c10d.py:5)", "wait  torch/distributed/c10d.py:5"),
        ("sleep (/usr/lib/python3.11/time.py:1)", "sleep  time.py:1"),
        ("f<A<int>, B>(std::vector<long>)::g (/x/libtorch.so)", "f::g  libtorch.so"),
        ("<module> (train.py:3)", "<module>  train.py:3"),
        ("no shape at all", "no shape at all"),
    ],
)
def test_frames_are_short(frame: str, short: str) -> None:
    assert short_frame(frame) == short


# -- the screen ------------------------------------------------------------------------------------------------------


def test_the_culprit_s_stack_comes_first_and_the_others_are_grouped() -> None:
    text = screen(stall())
    culprit, others = text.index("rank 2\n"), text.index("ranks 0, 1 and 3 (3)")
    assert text.index("STALLED") < culprit < others
    assert culprit < text.index("load  data.py:7") < others
    assert text.count("step  train.py:40") == 1


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, screen(stall(), width=width).splitlines())) <= width


def test_a_thousand_ranks_fit_one_screen() -> None:
    text = screen(stall(1024, (523,)))
    assert len(text.splitlines()) <= 48
    assert "1,023 of 1,024" in text
    assert "(1023 in all)" in text


def test_many_kinds_of_stack_are_counted_not_listed() -> None:
    kinds = tuple(((rank,), (f"f{rank} (/app/x.py:{rank})",)) for rank in range(900))
    assert "896 more kinds of stack" in screen(stall(1024, (523,), stacks=kinds))


def test_without_unicode_the_screen_is_ascii() -> None:
    assert screen(stall(), ascii_only=True).isascii()


def test_what_would_settle_it_is_said() -> None:
    open_ = stall(settle="the dump of rank 7")
    assert "To settle it: the dump of rank 7" in screen(open_, confidence=Confidence.MEDIUM)
    assert "To settle it" not in screen(open_, confidence=Confidence.HIGH)


def test_the_state_of_the_culprit_s_process_is_shown() -> None:
    stopped = Event("process.stopped", {"pid": 7}, rank=2, host="node-a", text="rank 2 (pid 7) is stopped")
    assert view(stall(), stopped).states == ("rank 2 (pid 7) is stopped",)


def test_why_there_are_no_stacks_is_said_once() -> None:
    why = {"no_stacks": "py-spy is not installed (pip install py-spy)"}
    events = [Event("process.state", why, rank=rank, host="node-a", text=f"rank {rank}") for rank in (0, 1, 3)]
    assert view(stall(), *events).states == (f"no stacks of ranks 0, 1 and 3: {why['no_stacks']}",)


def test_a_job_that_does_not_stall_has_no_view() -> None:
    assert hang_view(make_signals(), Run({})) is None
    assert hang_view(signals(stall(verdict="running")), Run({})) is None


# -- the groups' picture ---------------------------------------------------------------------------------------------


def three_d(tp: int = 4, pp: int = 2, dp: int = 2) -> Run:
    """Ranks in the usual order: tensor parallel innermost, then data parallel, then stages."""
    every = {
        "mesh_tp": [[b * tp + i for i in range(tp)] for b in range(pp * dp)],
        "mesh_dp": [[s * tp * dp + d * tp + i for d in range(dp)] for s in range(pp) for i in range(tp)],
        "mesh_pp": [[s * tp * dp + r for s in range(pp)] for r in range(tp * dp)],
    }
    rows = [
        {"rank": ranks[0], "group": f"{desc}{number}", "desc": desc, "ranks": ranks, "origin": "flight"}
        for desc, groups in every.items()
        for number, ranks in enumerate(groups)
    ]
    table = pl.DataFrame(rows, schema=FLIGHT_STATUS.schema, strict=False)
    return Run({"flight_status": table}, Coverage(ranks_expected=tuple(range(tp * pp * dp))))


def test_stages_are_blocks_and_tensor_groups_lines() -> None:
    grid = groups_grid(stall(16, (6,)), three_d(), {})
    assert grid is not None
    assert [block.label for block in grid.blocks] == ["pipeline stage 0", "pipeline stage 1"]
    assert [[cell.rank for cell in line.cells] for line in grid.blocks[0].lines] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    marked = [
        cell.rank for block in grid.blocks for line in block.lines for cell in line.cells if cell.kind == "culprit"
    ]
    assert marked == [6]


def test_without_known_groups_every_host_has_a_line() -> None:
    places = {rank: f"node-{rank // 4}" for rank in range(8)}
    grid = groups_grid(stall(8, (5,)), Run({}), places)
    assert grid is not None
    assert [line.label for line in grid.blocks[0].lines] == ["node-0", "node-1"]


def test_a_huge_job_shows_the_ranks_around_the_culprit() -> None:
    grid = groups_grid(stall(8192, (5000,)), Run({}), {})
    assert grid is not None
    cells = [cell.rank for block in grid.blocks for line in block.lines for cell in line.cells]
    assert len(cells) <= 2048
    assert 5000 in cells
    assert (grid.shown, grid.total) == (len(cells), 8192)


def test_many_lines_stand_beside_each_other() -> None:
    places = {rank: f"node-{rank // 8}" for rank in range(1024)}
    grid = groups_grid(stall(1024, (523,)), Run({}), places)
    assert grid is not None
    assert {len(block.lines) for block in grid.blocks} == {16}
    assert len(grid.blocks) == 8


def test_two_ranks_need_no_picture() -> None:
    assert groups_grid(stall(2, (1,)), Run({}), {}) is None
