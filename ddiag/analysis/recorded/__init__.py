"""Signals from what ddiag's recorder saw: phases, step summaries and host-timed communication instead of a trace."""

from __future__ import annotations
