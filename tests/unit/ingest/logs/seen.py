"""What one parser, or all of them, see in a few lines."""

from __future__ import annotations

from collections.abc import Callable

from ddiag.ingest.logs.line import LogParser
from ddiag.ingest.logs.reader import parse
from ddiag.ingest.logs.registry import PARSERS
from ddiag.model.event_kinds import EVENT_KINDS
from ddiag.model.incident import Event, Metric, Seen, Setting, Stack


def seen(text: str, *makers: Callable[[], LogParser]) -> list[Seen]:
    """Records that the parsers of *makers* give of *text*; every kind must be declared."""
    records = list(parse(text.splitlines(), makers, "x.log"))
    assert {one.kind for one in records if isinstance(one, Event)} <= set(EVENT_KINDS)
    return records


def events(text: str, *makers: Callable[[], LogParser]) -> list[Event]:
    return [one for one in seen(text, *makers) if isinstance(one, Event)]


def metrics(text: str, *makers: Callable[[], LogParser]) -> list[tuple[str, float, int | None]]:
    """(name, value, step)"""
    return [(one.name, one.value, one.step) for one in seen(text, *makers) if isinstance(one, Metric)]


def settings(text: str, *makers: Callable[[], LogParser]) -> dict[str, str]:
    return {f"{one.kind}:{one.key}": one.value for one in seen(text, *makers) if isinstance(one, Setting)}


def events_in(text: str, *kinds: str) -> list[Event]:
    """Events of *kinds* (all without any) that all parsers together see, in the order given by them."""
    found = [one for one in parse(text.strip("\n").split("\n"), PARSERS, "log") if isinstance(one, Event)]
    return [one for one in found if not kinds or one.kind in kinds]


def event_in(text: str, kind: str) -> Event:
    """The only event of *kind*."""
    (event,) = events_in(text, kind)
    return event


def stacks_in(text: str) -> list[Stack]:
    return [one for one in parse(text.strip("\n").split("\n"), PARSERS, "log") if isinstance(one, Stack)]
