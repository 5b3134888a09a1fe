"""From what rules said to what an engineer should read: one finding per cause and culprit, causes before
consequences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ddiag.rulekit.finding import Confidence, Cost, Culprits, Evidence, Finding, Role, Severity
from ddiag.rulekit.rule import LoadedRule

EXPLAINED_SHARE = 0.5
"""A cause must account for at least this part of a consequence's cost, else both stand on their own."""
SAME_NUMBER = 0.02
"""Two rules measure one thing in slightly different ways."""
T = TypeVar("T")


def arrange(findings: Sequence[Finding], rules: Sequence[LoadedRule]) -> tuple[Finding, ...]:
    """Merge findings of one cause and culprit, mark consequences, and put what to act on first."""
    explained_by = {rule.rule.id: rule.rule.explained_by for rule in rules}
    merged = sorted(merge_same(findings), key=urgency)
    causes = _causes(merged, explained_by)
    return tuple(_in_order(merged, causes))


def urgency(finding: Finding) -> tuple[int, bool, float, int, float, str, str]:
    """Sort key: severity, what stopped the job before what slows it, then cost, confidence, and what came first.

    The rest only makes the order certain.
    """
    cost = finding.cost.ms_per_step
    confidence = list(Confidence).index(finding.confidence)
    began_ns = math.inf if finding.began_ns is None else finding.began_ns
    key = (finding.severity.order, not finding.state.stopped, -(cost or 0.0), confidence, began_ns)
    return (*key, finding.rule, finding.title)


def merge_same(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of different rules with the same root cause and the same culprits become one.

    Two findings of one rule are never merged: the rule told them apart on purpose.
    """
    clusters: list[list[Finding]] = []
    for finding in sorted(findings, key=urgency):
        for cluster in clusters:
            if all(_same(finding, other) for other in cluster):
                cluster.append(finding)
                break
        else:
            clusters.append([finding])
    return [_merged(cluster) for cluster in clusters]


def _same(a: Finding, b: Finding) -> bool:
    return a.rule != b.rule and a.root_cause == b.root_cause and _same_culprits(a.culprits, b.culprits)


def _same_culprits(a: Culprits, b: Culprits) -> bool:
    """Equal ranks (or hosts, where a side names no rank) and groups; finer detail may be known to one side only."""
    if set(a.ranks) != set(b.ranks) or set(a.groups) != set(b.groups):
        return False
    if not a.ranks and set(a.hosts) != set(b.hosts):
        return False
    return _agree(a.devices, b.devices) and _agree(a.modules, b.modules)


def _agree(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    return not a or not b or set(a) == set(b)


def _merged(cluster: Sequence[Finding]) -> Finding:
    """The most urgent finding of *cluster*, the more special where equal, with everybody's evidence and fixes."""
    if len(cluster) == 1:
        return cluster[0]
    first = min((f for f in cluster if _as_urgent(f, cluster[0])), key=lambda f: -_number(f.rule))
    others = [finding for finding in cluster if finding is not first]
    cluster = [first, *others]
    return dataclasses.replace(
        first,
        confidence=min((f.confidence for f in cluster), key=list(Confidence).index),
        evidence=_all_evidence(cluster),
        fix=_distinct(step for f in cluster for step in f.fix),
        culprits=_all_culprits(cluster),
        victims=tuple(sorted({rank for f in cluster for rank in f.victims})),
        cost=_cost(cluster),
        why=_sentences(f.why for f in cluster),
        doubt=_sentences(f.doubt for f in cluster),
        references=_distinct(reference for f in cluster for reference in f.references),
        also_seen_by=tuple(sorted(f.rule for f in others)),
        began_ns=min((f.began_ns for f in cluster if f.began_ns is not None), default=None),
    )


def _as_urgent(finding: Finding, most: Finding) -> bool:
    """As severe as the most urgent one, and (within two per cent) as costly: the same loss."""
    if finding.severity is not most.severity:
        return False
    cost, highest = finding.cost.ms_per_step or 0.0, most.cost.ms_per_step or 0.0
    return abs(cost - highest) <= 0.02 * highest


def _number(rule: str) -> int:
    """402 of DD402; families are numbered from the general (DD101: the loader stalls) to the special (DD102: why)."""
    return int("".join(filter(str.isdigit, rule)) or 0)


def _all_evidence(cluster: Sequence[Finding]) -> tuple[Evidence, ...]:
    """Every distinct number once; of two that say the same, the first, or the one with a limit."""
    kept: list[Evidence] = []
    for item in (item for f in cluster for item in f.evidence):
        place = next((k for k, other in enumerate(kept) if _says_the_same(item, other)), None)
        if place is None:
            kept.append(item)
        elif kept[place].limit is None and item.limit is not None:
            kept[place] = item
    return tuple(kept)


def _says_the_same(a: Evidence, b: Evidence) -> bool:
    if (a.label, a.unit) != (b.label, b.unit):
        return False
    if isinstance(a.value, float) and isinstance(b.value, float):
        return math.isclose(a.value, b.value, rel_tol=SAME_NUMBER)
    return a.value == b.value


def _all_culprits(cluster: Sequence[Finding]) -> Culprits:
    parts = [f.culprits for f in cluster]
    return Culprits(
        ranks=tuple(sorted({r for p in parts for r in p.ranks})),
        hosts=_distinct(h for p in parts for h in p.hosts),
        devices=_distinct(d for p in parts for d in p.devices),
        groups=_distinct(g for p in parts for g in p.groups),
        modules=_distinct(m for p in parts for m in p.modules),
        where=next((p.where for p in parts if p.where), None),
    )


def _cost(cluster: Sequence[Finding]) -> Cost:
    """The most urgent finding's cost, not a sum: all of *cluster* measure the same loss."""
    costs = [f.cost for f in cluster]
    return next((cost for cost in costs if cost.ms_per_step is not None), costs[0])


def _distinct(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def _sentences(parts: Iterable[str]) -> str:
    return "; ".join(_distinct(part for part in parts if part))


def _causes(merged: Sequence[Finding], explained_by: dict[str, tuple[str, ...]]) -> dict[int, int]:
    """Index of a consequence -> index of its cause; the least urgent look first, so a cycle breaks at its top."""
    causes: dict[int, int] = {}
    for index in reversed(range(len(merged))):
        effect = merged[index]
        named = {cause for rule in _rules_of(effect) for cause in explained_by.get(rule, ())}
        for candidate, cause in enumerate(merged):
            if (
                candidate != index
                and named.intersection(_rules_of(cause))
                and _explains(cause, effect)
                and index not in _chain(candidate, causes)
            ):
                causes[index] = candidate
                break
    return causes


def _rules_of(finding: Finding) -> tuple[str, ...]:
    return (finding.rule, *finding.also_seen_by)


def _chain(index: int, causes: dict[int, int]) -> set[int]:
    """*index*, its cause, the cause of that, …"""
    seen = {index}
    while index in causes:
        index = causes[index]
        seen.add(index)
    return seen


def _explains(cause: Finding, effect: Finding) -> bool:
    """The cause touches the same ranks or groups and is large enough to account for the effect."""
    if not _overlap(cause, effect):
        return False
    if cause.severity is Severity.INFO and effect.severity is not Severity.INFO:
        return False
    cause_ms, effect_ms = cause.cost.ms_per_step, effect.cost.ms_per_step
    if cause_ms is not None and effect_ms is not None:
        return cause_ms > 0 and cause_ms >= EXPLAINED_SHARE * effect_ms
    return cause.severity.order <= effect.severity.order


def _overlap(a: Finding, b: Finding) -> bool:
    """Whether both touch the same; naming nobody means the whole job, and different kinds of names do not exclude."""
    for ours, theirs in ((_touched(a), _touched(b)), (set(a.culprits.groups), set(b.culprits.groups))):
        if ours and theirs and not ours & theirs:
            return False
    return True


def _touched(finding: Finding) -> set[int]:
    """Culprit ranks and those that suffer from them; empty = the whole job."""
    return {*finding.culprits.ranks, *finding.victims} if finding.culprits.ranks else set()


def _in_order(merged: Sequence[Finding], causes: dict[int, int]) -> Iterable[Finding]:
    """Causes by urgency, each followed by what it explains (and what that explains in turn).

    A cause is as severe as the worst it explains: fixing it is what helps.
    """
    trees = [_tree(index, merged, causes) for index in range(len(merged)) if index not in causes]
    trees.sort(key=lambda tree: (min(f.severity.order for f in tree), urgency(tree[0])[1:]))
    for tree in trees:
        yield from tree


def _tree(index: int, merged: Sequence[Finding], causes: dict[int, int]) -> list[Finding]:
    """The finding at *index* and its consequences, marked as such."""
    finding = merged[index]
    if index in causes:
        finding = dataclasses.replace(finding, role=Role.CONSEQUENCE, explained_by=merged[causes[index]].rule)
    below = (_tree(effect, merged, causes) for effect in sorted(causes) if causes[effect] == index)
    return [finding, *(f for tree in below for f in tree)]
