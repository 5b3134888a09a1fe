"""Judging a node before a job runs on it: pure functions from a node's facts to checks."""

from __future__ import annotations

from ddiag.analysis.preflight.compare import odd_ones_out
from ddiag.analysis.preflight.judge import judge

__all__ = ["judge", "odd_ones_out"]
