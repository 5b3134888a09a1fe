"""A look at this node for ``ddiag doctor``: facts, read only; nothing is judged, changed or loaded onto a device."""

from __future__ import annotations

from ddiag.supervise.survey.collect import survey

__all__ = ["survey"]
