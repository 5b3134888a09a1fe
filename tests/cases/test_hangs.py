"""Synthetic hangs with a known answer: the situations in which counting who is missing blames the wrong rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddiag.analysis.families import derive
from ddiag.api import load
from ddiag.model.signals_incident import Stall
from tests.shared import shared_data
from tools.score_hangs import LEAST_RIGHT, Answer, answer, table
from tools.synth.hang import Hang, make_hang, write_hang
from tools.synth.hangs.dump import Style
from tools.synth.hangs.faults import KINDS, Plan, played
from tools.synth.hangs.program import Layout, ddp, fsdp, three_d

TP_PP_DP = three_d(2, 2, 2, 3, reuse_names=False)
REUSED = three_d(2, 2, 2, 3, reuse_names=True)
EVERYBODY = Style("2.10")


def hang(kind: str, layout: Layout, culprit: int, *, without: tuple[int, ...] = (), style: Style = EVERYBODY) -> Hang:
    """A hang of *kind* by *culprit* in the second step of *layout*, where the fault can be planted first."""
    for index, op in enumerate(layout.programs[culprit]):
        plan = KINDS[kind](layout, culprit, index) if op.step == 1 else None
        if isinstance(plan, Plan):
            ranks = played(layout, plan)
            if any(rank.open for rank in ranks):
                missing = tuple(sorted({*without, *plan.dead}))
                return Hang(kind, layout, ranks, plan.culprits, missing, (plan.culprits,), style)
    raise AssertionError(f"{kind} cannot be planted on rank {culprit} of {layout.kind}")


def diagnosed(case: Hang, folder: Path) -> Stall:
    """What the dumps of *case* show."""
    stall = derive(load([str(path) for path in write_hang(case, folder)])).get(Stall)
    assert stall is not None
    return stall


@pytest.mark.parametrize("culprit", [0, 1, 5, 7])
@pytest.mark.parametrize("kind", ["other_op", "other_size", "other_type"])
def test_the_odd_rank_is_found_whoever_it_is(kind: str, culprit: int, tmp_path: Path) -> None:
    stall = diagnosed(hang(kind, ddp(8, 3), culprit), tmp_path)
    assert (stall.verdict, stall.culprits, stall.confidence) == ("mismatch", (culprit,), "high")


@pytest.mark.parametrize("layout", [ddp(6, 3), fsdp(4, 2, 3, reuse_names=False)], ids=lambda job: job.kind)
def test_a_call_that_all_began_and_none_ended_blames_no_rank(layout: Layout, tmp_path: Path) -> None:
    stall = diagnosed(hang("network", layout, 1), tmp_path)
    assert (stall.verdict, stall.culprits) == ("in_flight", ())
    assert "RAS" in stall.settle


@pytest.mark.parametrize("culprit", range(8))
def test_a_cascade_through_tensor_pipeline_and_data_groups_leads_to_one_rank(culprit: int, tmp_path: Path) -> None:
    stall = diagnosed(hang("late", TP_PP_DP, culprit), tmp_path)
    assert (stall.verdict, stall.culprits) == ("late", (culprit,))
    assert set(stall.victims) == set(range(8)) - {culprit}
    assert len({group.desc for group in stall.groups}) > 1


@pytest.mark.parametrize("culprit", [0, 2, 4])
def test_two_neighbours_that_both_send_are_a_deadlock_of_both(culprit: int, tmp_path: Path) -> None:
    case = hang("send_send", three_d(1, 4, 2, 3, reuse_names=False), culprit)
    stall = diagnosed(case, tmp_path)
    assert (stall.verdict, stall.culprits) == ("deadlock", case.culprits)
    assert len(stall.cycle) == 2


@pytest.mark.parametrize("culprit", [0, 3, 7])
@pytest.mark.parametrize("layout", [ddp(8, 3), TP_PP_DP], ids=lambda job: job.kind)
def test_the_one_without_a_dump_is_suspected_but_not_convicted(layout: Layout, culprit: int, tmp_path: Path) -> None:
    stall = diagnosed(hang("dead", layout, culprit), tmp_path)
    assert (stall.verdict, stall.culprits, stall.confidence) == ("suspect_by_absence", (culprit,), "medium")
    assert f"rank {culprit}" in stall.settle


@pytest.mark.parametrize("culprit", [0, 6])
def test_an_innocent_without_a_dump_is_not_suspected(culprit: int, tmp_path: Path) -> None:
    """The rank without a dump would explain nothing: a dump shows who did not come."""
    stall = diagnosed(hang("late", ddp(8, 3), culprit, without=(3,)), tmp_path)
    assert (stall.verdict, stall.culprits) == ("late", (culprit,))


def test_two_ranks_without_dumps_are_both_candidates(tmp_path: Path) -> None:
    stall = diagnosed(hang("dead", ddp(8, 3), 2, without=(5,)), tmp_path)
    assert (stall.verdict, stall.culprits, stall.candidates) == ("undecided", (), (2, 5))


@pytest.mark.parametrize("culprit", [0, 1, 5])
@pytest.mark.parametrize("layout", [ddp(6, 8), REUSED], ids=lambda job: job.kind)
def test_calls_that_left_the_ring_are_not_missing_calls(layout: Layout, culprit: int, tmp_path: Path) -> None:
    """The late rank kept older calls than the others: none of those is missing anywhere."""
    stall = diagnosed(hang("late", layout, culprit, style=Style("2.4", ring=6)), tmp_path)
    assert (stall.verdict, stall.culprits) == ("late", (culprit,))


@pytest.mark.parametrize("culprit", [0, 3, 6])
@pytest.mark.parametrize("as_json", [False, True])
def test_groups_of_one_name_are_told_apart_by_their_members(culprit: int, tmp_path: Path, *, as_json: bool) -> None:
    stall = diagnosed(hang("late", REUSED, culprit, style=Style("2.9", as_json=as_json)), tmp_path)
    assert (stall.verdict, stall.culprits) == ("late", (culprit,))
    assert culprit in stall.groups[0].ranks


@pytest.mark.parametrize("culprit", [0, 2, 7])
def test_a_rank_that_calls_two_groups_in_the_other_order_is_named(culprit: int, tmp_path: Path) -> None:
    stall = diagnosed(hang("crossed", fsdp(4, 2, 3, reuse_names=False), culprit), tmp_path)
    assert (stall.verdict, stall.culprits) == ("deadlock", (culprit,))


@pytest.mark.parametrize("culprit", [0, 5])
def test_a_gpu_that_begins_nothing_is_told_from_a_host_that_is_late(culprit: int, tmp_path: Path) -> None:
    stall = diagnosed(hang("gpu_stuck", ddp(8, 3), culprit), tmp_path)
    assert (stall.verdict, stall.culprits) == ("gpu_side", (culprit,))


@pytest.mark.parametrize("culprit", [0, 4])
def test_one_that_does_not_finish_what_others_finished_is_named(culprit: int, tmp_path: Path) -> None:
    stall = diagnosed(hang("unfinished", ddp(8, 3), culprit), tmp_path)
    assert (stall.verdict, stall.culprits) == ("partly_done", (culprit,))


@pytest.mark.parametrize("culprit", [0, 3])
def test_who_left_the_loop_early_is_ahead_not_late(culprit: int, tmp_path: Path) -> None:
    stall = diagnosed(hang("uneven", ddp(4, 3), culprit), tmp_path)
    assert (stall.cause, stall.culprits) == ("uneven", (culprit,))


@pytest.mark.parametrize(
    ("job", "verdict", "injected"),
    [("gpu_error_1st", "partly_done", (12, 14)), ("lock_gil_1st", "late", (9, 14))],
)
def test_faults_injected_into_a_real_job_of_16_ranks_are_named(
    job: str, verdict: str, injected: tuple[int, ...]
) -> None:
    folder = shared_data("NVIDIA+nvidia-resiliency-ext", "fr_traces", job)
    stall = derive(load([str(path) for path in sorted(folder.glob("_dump_*"))])).get(Stall)
    assert stall is not None
    assert (stall.verdict, stall.culprits) == (verdict, injected)
    assert set(stall.victims) == set(range(16)) - set(injected)


def test_a_job_that_goes_on_is_not_called_stuck(tmp_path: Path) -> None:
    layout = TP_PP_DP
    whole = Hang("healthy", layout, played(layout, Plan(layout.programs, ())), (), (), ((),), EVERYBODY)
    assert diagnosed(whole, tmp_path).verdict == "running"


@pytest.mark.parametrize("version", ["2.2", "1.4", "2.1", "2.4", "2.9", "2.10"])
def test_every_version_of_dumps_names_the_same_rank(version: str, tmp_path: Path) -> None:
    stall = diagnosed(hang("late", ddp(4, 3), 2, style=Style(version)), tmp_path)
    assert (stall.verdict, stall.culprits) == ("late", (2,))


def test_order_and_names_of_files_do_not_matter(tmp_path: Path) -> None:
    case = hang("late", TP_PP_DP, 5)
    files = write_hang(replace(case, style=Style("2.9", prefix="gn4.example-rank")), tmp_path)
    stall = derive(load([str(path) for path in reversed(files)])).get(Stall)
    assert stall is not None
    assert stall.culprits == (5,)


def _scored(seeds: range, make: Callable[[int], Answer] = answer) -> list[Answer]:
    return [make(seed) for seed in seeds]


@pytest.mark.slow
def test_of_a_hundred_random_hangs_hardly_any_is_misjudged_and_no_innocent_is_blamed() -> None:
    answers = _scored(range(100))
    assert not [one.seed for one in answers if one.harmful]
    assert sum(one.right for one in answers) >= 98, table(answers)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_of_a_thousand_random_hangs_99_per_cent_are_right_and_no_innocent_is_blamed() -> None:
    answers = _scored(range(10_000, 11_000))
    assert not [one.seed for one in answers if one.harmful]
    assert sum(one.right for one in answers) >= LEAST_RIGHT * 1000, table(answers)


def test_the_same_seed_gives_the_same_hang(tmp_path: Path) -> None:
    first, second = (make_hang(7) for _ in range(2))
    assert (first.kind, first.culprits, first.missing, first.style) == (
        second.kind,
        second.culprits,
        second.missing,
        second.style,
    )
    written = [
        [path.read_bytes() for path in write_hang(one, tmp_path / str(at))] for at, one in enumerate((first, second))
    ]
    assert written[0] == written[1]
