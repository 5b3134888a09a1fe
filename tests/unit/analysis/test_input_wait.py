"""Waiting for the next batch."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.input_wait import input_wait
from ddiag.analysis.steps import find_steps
from ddiag.model.signals import InputWait
from tests.builders import RunBuilder


def signal(builder: RunBuilder) -> InputWait | None:
    run = builder.build()
    return input_wait(run, find_steps(run), activity(run))


def loading(*waits_ms: float, workers: int = 4, rank: int = 0, builder: RunBuilder | None = None) -> RunBuilder:
    """100 ms steps that begin with a wait; the device works from 12 ms on (or from the end of a longer wait)."""
    builder = (builder or RunBuilder()).rank(rank)
    for k, wait in enumerate(waits_ms):
        at, begin = 100 * k, max(12, wait + 2)
        builder.step(k, at, 100).loader(at, wait, workers=workers)
        builder.launch_kernel("gemm", at + begin - 1, at + begin, 100 - begin)
    return builder


def test_wait_and_stall_are_per_step_and_rank() -> None:
    builder = loading(10, 10, 10, 10)
    found = signal(loading(40, 40, 40, 40, rank=1, builder=builder))
    assert found is not None
    assert found.per_rank.rows() == [
        (0, pytest.approx(10), pytest.approx(10), pytest.approx(0.10)),
        (1, pytest.approx(40), pytest.approx(40), pytest.approx(0.40)),
    ]
    assert (found.wait_ms, found.stall_ms, found.stall_share) == pytest.approx((25, 25, 0.25))


def test_a_wait_hidden_behind_the_device_is_no_stall() -> None:
    builder = RunBuilder()
    for k in range(4):
        builder.step(k, 100 * k, 100).loader(100 * k, 60)
        builder.launch_kernel("gemm", 100 * k - 30, 100 * k, 100)
    found = signal(builder)
    assert found is not None
    assert [found.wait_ms, found.stall_ms] == pytest.approx([60, 0])


def test_without_a_device_the_wait_is_the_stall() -> None:
    builder = RunBuilder(device_kind="cpu")
    for k in range(3):
        builder.step(k, 100 * k, 100).loader(100 * k, 30).op("aten::stack", 100 * k + 5, 5).op(
            "aten::mm", 100 * k + 30, 60
        )
    found = signal(builder)
    assert found is not None
    assert [found.wait_ms, found.stall_ms] == pytest.approx([30, 30])


@pytest.mark.parametrize(("workers", "single"), [(0, True), (4, False)])
def test_the_loaders_class_says_where_batches_are_made(workers: int, single: bool) -> None:
    found = signal(loading(10, 10, 10, workers=workers))
    assert found is not None
    assert found.single_process is single
    assert ("_SingleProcess" in found.iterator) is single


@pytest.mark.parametrize(
    "name",
    [
        "torch/utils/data/dataloader.py(701): __next__",
        "nvidia/dali/plugin/base_iterator.py(120): __next__",
        "data_prefetcher.py(31): next",
        "IteratorGetNext",
        "next_batch",
    ],
)
def test_loaders_of_other_kinds_are_recognised_without_knowing_their_workers(name: str) -> None:
    builder = RunBuilder()
    for k in range(3):
        builder.step(k, 100 * k, 100).python(name, 100 * k, 20).launch_kernel("gemm", 100 * k + 21, 100 * k + 22, 70)
    found = signal(builder)
    assert found is not None
    assert [found.wait_ms, found.single_process] == pytest.approx([20, None])


def test_spikes_at_equal_distance_give_the_number_of_workers() -> None:
    waits = [60.0 if k % 4 == 1 else 0.5 for k in range(16)]
    found = signal(loading(*waits))
    assert found is not None
    assert found.spike_period == 4


@pytest.mark.parametrize("waits", [[60, 0.5] * 4, [2.0, 17.4, 4.1, 16.0, 5.9, 15.3]])
def test_two_workers_make_every_second_wait_a_spike(waits: list[float]) -> None:
    found = signal(loading(*waits))
    assert found is not None
    assert found.spike_period == 2


@pytest.mark.parametrize("waits", [[60, 0.5, 0.5, 60, 0.5, 60, 0.5, 0.5], [5] * 8, [0.1, 0.5, 0.1, 0.5, 0.1, 0.5]])
def test_irregular_even_or_tiny_waits_have_no_period(waits: list[float]) -> None:
    found = signal(loading(*waits))
    assert found is not None
    assert found.spike_period is None


def test_every_wait_is_listed_with_its_step() -> None:
    found = signal(loading(10, 20, 30))
    assert found is not None
    assert found.waits is not None
    assert found.waits.select("rank", "step", "wait_ms").rows() == [(0, 0, 10), (0, 1, 20), (0, 2, 30)]


def test_no_loader_seen_means_nothing_is_known() -> None:
    assert signal(RunBuilder().step(0, 0, 100).launch_kernel("gemm", 0, 1, 90)) is None
