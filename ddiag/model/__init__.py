"""Columnar facts (:class:`Run`), typed :mod:`signals` and :class:`Coverage`: what the whole right half speaks."""

from ddiag.model.run import Coverage, InputFile, Run
from ddiag.model.signals import Signals
from ddiag.model.tables import TABLES

__all__ = ["TABLES", "Coverage", "InputFile", "Run", "Signals"]
