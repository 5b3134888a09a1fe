"""From facts to signals: pure functions over a :class:`~ddiag.model.run.Run`, each giving one signal family or None."""

from __future__ import annotations

from ddiag.model.run import Run
from ddiag.model.signals import Signals


def derive(run: Run) -> Signals:
    """All signal families that the facts of *run* can give."""
    from ddiag.analysis import families

    return families.derive(run)


__all__ = ["derive"]
