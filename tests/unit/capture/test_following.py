"""The end of an interpreter in whose groups collectives are still under way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from ddiag.capture.hooks import following


class Group:
    """Stands for a process group."""


@pytest.fixture
def pending(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """A group's calls whose end is yet to be told."""
    calls = {1}
    monkeypatch.setattr(following, "_told", {0: calls, 1: set()})
    return calls


def test_where_torch_waits_for_collectives_so_do_we_whatever_a_signal_raises(pending: set[int]) -> None:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Timer(0.4, pending.clear).start()
    began = time.monotonic()
    following.outlast("2.13.0+cpu", ())
    assert 0.35 < time.monotonic() - began < 5


@pytest.mark.parametrize("version", ["2.4.1", "2.12.0", "2.14.1"])
def test_elsewhere_the_groups_are_kept_instead(pending: set[int], version: str) -> None:
    group = Group()
    before = sys.getrefcount(group)
    following.outlast(version, (group,))
    assert pending
    assert sys.getrefcount(group) == before + 1


@pytest.mark.parametrize("version", ["2.4.1", "2.13.0"])
def test_with_nothing_under_way_nothing_is_done(pending: set[int], version: str) -> None:
    pending.clear()
    group = Group()
    before = sys.getrefcount(group)
    following.outlast(version, (group,))
    assert sys.getrefcount(group) == before
