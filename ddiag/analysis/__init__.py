"""From facts to signals: pure functions over a :class:`~ddiag.model.run.Run`, each giving one signal family or None."""

from __future__ import annotations

from ddiag.model.run import Run
from ddiag.model.signals import Signals


def derive(run: Run, *, steps: tuple[int, int] | None = None) -> Signals:
    """All signal families that the facts of *run* can give.

    *steps* (first, last, both included) makes exactly these steps the steady ones; UsageError when none was recorded.
    """
    from ddiag.analysis import families

    return families.derive(run, steps=steps)


__all__ = ["derive"]
