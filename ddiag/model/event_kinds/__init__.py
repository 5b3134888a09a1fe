"""Every kind of event a reader may give, by area, with its fields; the docs of ``log_events`` come from here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ddiag.model.event_kinds.c10d import C10D

EVENT_KINDS: Mapping[str, str] = MappingProxyType({**C10D})
"""kind -> meaning and fields."""
