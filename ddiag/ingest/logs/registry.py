"""The parsers every text file is offered to."""

from __future__ import annotations

from collections.abc import Callable

from ddiag.ingest.logs.line import LogParser

PARSERS: tuple[Callable[[], LogParser], ...] = ()
"""Makers of parsers, one object per file."""
