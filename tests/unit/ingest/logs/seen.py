"""What the parsers see in a text, as tests ask for it."""

from __future__ import annotations

from ddiag.ingest.logs.reader import parse
from ddiag.ingest.logs.registry import PARSERS
from ddiag.model.incident import Event, Stack


def events_in(text: str, *kinds: str) -> list[Event]:
    """Events of *kinds* (all without any) in the order given by the parsers."""
    found = [one for one in parse(text.strip("\n").split("\n"), PARSERS, "log") if isinstance(one, Event)]
    return [one for one in found if not kinds or one.kind in kinds]


def event_in(text: str, kind: str) -> Event:
    """The only event of *kind*."""
    (event,) = events_in(text, kind)
    return event


def stacks_in(text: str) -> list[Stack]:
    return [one for one in parse(text.strip("\n").split("\n"), PARSERS, "log") if isinstance(one, Stack)]
