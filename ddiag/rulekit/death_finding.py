"""What rules about dead processes say in the same way: who, whom it took along, and what shows it."""

from __future__ import annotations

from collections.abc import Sequence

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Death, Deaths
from ddiag.rulekit.cost import name_ranks
from ddiag.rulekit.finding import Culprits, Evidence

MOST_ROWS = 6


def who(death: Death) -> str:
    """``rank 5 on gn12``, ``a process on gn12`` or ``a process``."""
    name = f"rank {death.rank}" if death.rank is not None else "a process"
    return f"{name} on {death.host}" if death.host else name


def culprits(deaths: Sequence[Death]) -> Culprits:
    ranks = tuple(sorted({death.rank for death in deaths if death.rank is not None}))
    hosts = tuple(dict.fromkeys(death.host for death in deaths if death.host))
    wheres = {death.where for death in deaths}
    return Culprits(ranks=ranks, hosts=hosts, where=wheres.pop() if len(wheres) == 1 else None)


def victims(deaths: Deaths, facts: JobFacts | None, guilty: Sequence[int]) -> tuple[int, ...]:
    """Ranks that were brought down, and all others known."""
    known = set(facts.ranks) if facts is not None else set()
    known |= {death.rank for death in deaths.cascade if death.rank is not None}
    return tuple(sorted(known - set(guilty)))


def evidence(first: Sequence[Death], deaths: Deaths) -> tuple[Evidence, ...]:
    """How each of *first* ended, line by line, and who followed."""
    rows: list[Evidence] = []
    for death in first[:MOST_ROWS]:
        rows.append(Evidence(who(death), death.what, "", None, death.events[0].source if death.events else ""))
        if death.where:
            rows.append(Evidence(f"{who(death)}: raised in", death.where))
        rows += [
            Evidence("also", event.text[:160], "", None, event.source) for event in death.events[1:3] if event.text
        ]
    after = [death for death in deaths.cascade if death not in first]
    if after:
        ranks = sorted({death.rank for death in after if death.rank is not None})
        named = name_ranks(ranks) if ranks else "other processes"
        rows.append(Evidence("followed by", f"{named}: {after[0].what}"[:160], "", None, _source(after[0])))
    return tuple(rows)


def _source(death: Death) -> str:
    return death.events[0].source if death.events else ""


def began_ns(deaths: Sequence[Death]) -> int | None:
    return min((death.ts_ns for death in deaths if death.ts_ns is not None), default=None)
