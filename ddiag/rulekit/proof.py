"""Evidence rows and culprits from what logs and tools say: shared by the rules about nodes, devices and networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddiag.model.incident import Event, NodeFact, Setting
from ddiag.model.placement import Placement, Seat, distinct_hosts
from ddiag.rulekit.finding import Evidence

MOST_ROWS = 4
MOST_TEXT = 160


def shown(label: str, seen: Event | NodeFact | Setting, value: str | float | None = None, unit: str = "") -> Evidence:
    """One row: *value*, or the line itself, and where it stands."""
    text = seen.value if isinstance(seen, Setting) else seen.text
    return Evidence(label, shortened(text) if value is None else value, unit, None, seen.source)


def lines(label: str, events: Sequence[Event], most: int = MOST_ROWS) -> tuple[Evidence, ...]:
    """The first lines, and how many there are in all."""
    rows = [shown(_on(label, event.host), event) for event in events[:most]]
    if len(events) > most:
        rows.append(Evidence(f"{label}: in all", len(events), "lines"))
    return tuple(rows)


def _on(label: str, host: str | None) -> str:
    return f"{label} on {host}" if host else label


def shortened(text: str) -> str:
    """A line without its envelope's blanks, at most MOST_TEXT characters, its end kept: there stands the message."""
    plain = " ".join(text.split())
    return plain if len(plain) <= MOST_TEXT else f"… {plain[-MOST_TEXT:]}"


def hosts_among(seen: Iterable[Event | NodeFact | Setting], placement: Placement | None) -> tuple[str, ...]:
    """Hosts that said it; where none is named, the only host of the evidence."""
    named = distinct_hosts(one.host for one in seen)
    only = placement.host(None) if placement is not None else None
    return named or ((only,) if only else ())


def name_hosts(hosts: Sequence[str], most: int = 3) -> str:
    """``host gn31``, ``hosts gn31, gn32``, ``hosts gn31, gn32, gn33, … (16 in all)``: as the verdict says it."""
    if not hosts:
        return "a node"
    more = f", … ({len(hosts)} in all)" if len(hosts) > most else ""
    return f"{'host' if len(hosts) == 1 else 'hosts'} {', '.join(hosts[:most])}{more}"


def ranks_in(seats: Iterable[Seat]) -> tuple[int, ...]:
    return tuple(sorted({seat.rank for seat in seats}))
