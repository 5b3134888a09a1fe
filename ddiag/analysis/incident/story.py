"""What happened, in order: the events that tell it, the same ones of many ranks in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddiag.analysis.incident.story_words import WORDS
from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events, Story, StoryLine

MOST_LINES = 14
CONSEQUENCES = ("nccl.peer_lost", "gloo.peer_closed", "launcher.restart")
"""Told only while there is room: what others' end brings about."""


def story(events: Events | None) -> Story | None:
    """The story of *events*; None when nothing in them is part of one."""
    if events is None:
        return None
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events.all:
        words = WORDS[event.kind](event) if event.kind in WORDS else ""
        if words:
            groups.setdefault((event.kind, words), []).append(event)
    if not groups:
        return None
    chosen = _chosen(list(groups))
    lines = [_line(words, groups[kind, words]) for kind, words in chosen]
    return Story(tuple(_in_order(lines)), len(groups) - len(chosen))


def _chosen(keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first of each kind before the second of any, consequences last."""
    turn: dict[str, int] = {}
    ranked = []
    for place, (kind, words) in enumerate(keys):
        turn[kind] = turn.get(kind, 0) + 1
        ranked.append(((kind in CONSEQUENCES, turn[kind], place), (kind, words)))
    return [key for _, key in sorted(ranked)[:MOST_LINES]]


def _line(words: str, events: Sequence[Event]) -> StoryLine:
    dated = [event for event in events if event.ts_ns is not None]
    first = min(dated, key=lambda event: event.ts_ns or 0) if dated else events[0]
    return StoryLine(
        what=words,
        ranks=tuple(sorted(_distinct(event.rank for event in events))),
        hosts=tuple(dict.fromkeys(event.host for event in events if event.host is not None)),
        ts_ns=first.ts_ns,
        clock=first.clock,
        count=len(events),
        source=first.source,
    )


def _distinct(ranks: Iterable[int | None]) -> set[int]:
    return {rank for rank in ranks if rank is not None}


def _in_order(lines: Sequence[StoryLine]) -> list[StoryLine]:
    dated = sorted((line for line in lines if line.ts_ns is not None), key=lambda line: line.ts_ns or 0)
    return [*dated, *(line for line in lines if line.ts_ns is None)]
