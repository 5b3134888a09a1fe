"""Findings as cards: a cause with its consequences folded beneath it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddiag.plots.step_time import rank_label
from ddiag.rulekit.finding import Finding, Role

MOST_CHIPS = 12


@dataclass(frozen=True)
class Chip:
    """A culprit; ranks, hosts and groups filter the charts and tables."""

    kind: str
    """rank, host, group, device or module."""
    value: str
    words: str

    @property
    def filters(self) -> bool:
        return self.kind in ("rank", "host", "group")


@dataclass(frozen=True)
class Card:
    finding: Finding
    anchor: str
    chips: tuple[Chip, ...]
    chips_total: int
    consequences: tuple[Card, ...]


def make_cards(findings: Sequence[Finding]) -> tuple[Card, ...]:
    """Causes in order, each with the consequences that name it; a consequence without its cause stands by itself."""
    anchors = _anchors(findings)
    causes = [i for i, f in enumerate(findings) if f.role is Role.CAUSE or not _explained(f, findings)]
    claimed: dict[str, list[int]] = {}
    for i, finding in enumerate(findings):
        if i not in causes:
            claimed.setdefault(str(finding.explained_by), []).append(i)
    cards = []
    for i in causes:
        # Two findings of one rule: the first one takes the consequences.
        mine = claimed.pop(findings[i].rule, [])
        folded = tuple(_card(findings[k], anchors[k], ()) for k in mine)
        cards.append(_card(findings[i], anchors[i], folded))
    orphans = (k for left in claimed.values() for k in left)
    return (*cards, *(_card(findings[k], anchors[k], ()) for k in orphans))


def _explained(finding: Finding, findings: Sequence[Finding]) -> bool:
    return any(f.rule == finding.explained_by and f is not finding for f in findings)


def _anchors(findings: Sequence[Finding]) -> list[str]:
    """``DD902``; a rule's second finding is ``DD902-2``."""
    seen: Counter[str] = Counter()
    anchors = []
    for finding in findings:
        seen[finding.rule] += 1
        anchors.append(finding.rule if seen[finding.rule] == 1 else f"{finding.rule}-{seen[finding.rule]}")
    return anchors


def _card(finding: Finding, anchor: str, consequences: tuple[Card, ...]) -> Card:
    who = finding.culprits
    chips = [Chip("rank", str(rank), rank_label(rank, None)) for rank in who.ranks]
    for kind, names in (("host", who.hosts), ("group", who.groups), ("device", who.devices), ("module", who.modules)):
        chips += [Chip(kind, name, f"{kind} {name}") for name in names]
    return Card(finding, anchor, tuple(chips[:MOST_CHIPS]), len(chips), consequences)
