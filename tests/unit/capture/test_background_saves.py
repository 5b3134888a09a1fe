"""A thread that saves a checkpoint issues collectives: who looks at them stays away until its future is done."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from concurrent.futures import Future
from enum import Enum
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ddiag.capture.hooks import background_saves, c10d_dispatch  # noqa: E402
from ddiag.capture.identity import is_helper  # noqa: E402
from ddiag.capture.patches import Patches  # noqa: E402
from ddiag.capture.recorder import Recorder  # noqa: E402
from ddiag.schema.phases import Flag, Kind, Op, Phase  # noqa: E402
from ddiag.schema.steps import UNKNOWN  # noqa: E402
from tests.unit.capture.reading import records, steps_of  # noqa: E402


class How(Enum):
    THREAD = "thread"
    PROCESS = "process"


class Both:
    def __init__(self, future: Future[str]) -> None:
        self.upload_completion = future


@pytest.fixture
def saver() -> Iterator[Any]:
    """The module that saves: it returns what it is given, or raises it."""
    module = types.ModuleType("torch.distributed.checkpoint.state_dict_saver")

    def async_save(result: Any, **_options: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    module.async_save = async_save  # type: ignore[attr-defined]
    patches = Patches()
    background_saves.install(module, patches)
    yield module
    assert patches.restore() == []
    assert module.async_save is async_save
    background_saves._running.clear()
    assert background_saves.holders == []


@pytest.fixture
def tier(active: Recorder) -> Iterator[c10d_dispatch.DispatchTier]:
    patches = Patches()
    assert c10d_dispatch.start(active, patches)
    made = c10d_dispatch._tier
    assert made is not None
    yield made
    patches.restore()
    assert not made.looking


def step(active: Recorder, *, calls: int = 0) -> None:
    """A step that ends, in which so many collectives were seen."""
    for _ in range(calls):
        active.complete(active.begin_collective(Op.ALL_REDUCE, 0, flags=Flag.SAMPLED, bytes_in=8))
    active.engine_step()


def test_the_tier_is_off_until_the_save_is_done(active: Recorder, saver: Any, tier: c10d_dispatch.DispatchTier) -> None:
    step(active, calls=2)
    assert tier.looking
    active.complete(active.begin_collective(Op.ALL_REDUCE, 0, flags=Flag.SAMPLED))
    future: Future[str] = Future()
    assert saver.async_save(future) is future
    assert not tier.looking, "before the thread's first call"
    step(active)
    step(active)
    assert not tier.looking
    future.set_result("saved")
    step(active)
    assert tier.looking
    step(active, calls=3)
    active.close_steps()
    assert [one.comm_count for one in steps_of(active.files)] == [2, UNKNOWN, UNKNOWN, UNKNOWN, 3]
    assert [one.step for one in records(active.files, Kind.COLLECTIVE)] == [0, 0, 4, 4, 4], "no step is seen in part"


def test_the_last_of_several_saves_counts(active: Recorder, saver: Any, tier: c10d_dispatch.DispatchTier) -> None:
    first, second = Future[str](), Future[str]()
    saver.async_save(first, async_checkpointer_type=How.THREAD)
    saver.async_save(Both(second))
    for future in (first, second):
        step(active)
        assert not tier.looking
        future.set_result("saved")
    step(active)
    assert tier.looking
    told = [line for line in active.files.facts.read_text().splitlines() if "async_save" in line]
    assert len(told) == 1, "once, however many saves there are"


def test_a_save_that_fails_or_is_done_by_a_process_holds_nothing(
    active: Recorder, saver: Any, tier: c10d_dispatch.DispatchTier
) -> None:
    saver.async_save(Future[str](), async_checkpointer_type=How.PROCESS)
    assert tier.looking
    with pytest.raises(ValueError, match="no such place"):
        saver.async_save(ValueError("no such place"))
    step(active)
    assert tier.looking


def test_a_save_begun_inside_backward_does_not_free_a_kernel(
    active: Recorder, saver: Any, tier: c10d_dispatch.DispatchTier
) -> None:
    """Other threads issue collectives there."""
    token = active.enter(Phase.BACKWARD)
    saver.async_save(Future[str]())
    assert tier.looking
    active.leave(token)
    step(active)
    assert tier.looking, "and nobody waits for its end"


def test_nobody_keeps_a_future_that_nobody_asks_for(saver: Any) -> None:
    saver.async_save(Future[str]())
    assert not background_saves.running()


def test_torchs_own_helper_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_helper()
    process = types.SimpleNamespace(_target=types.SimpleNamespace(__module__="train"))
    processes = types.SimpleNamespace(current_process=lambda: process)
    monkeypatch.setitem(sys.modules, "multiprocessing.process", processes)  # type: ignore[arg-type]
    assert not is_helper()
    process._target.__module__ = "torch.distributed.checkpoint._async_process_executor"
    assert is_helper()
