"""From facts to signals: pure functions over a :class:`~ddiag.model.run.Run`, each giving one signal family or None."""

from __future__ import annotations

from ddiag.analysis.families import derive

__all__ = ["derive"]
