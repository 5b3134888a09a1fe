"""The network of one node is congested or loses packets, and slows all collectives through it.

## Meaning
Pause frames, congestion notifications, out-of-sequence packets or link errors pile up on one node far beyond its peers:
a bad cable, a port without flow control, a busy switch.

## Impact
Bandwidth collapses at random; compute is equal on all nodes.

## Diagnosis
Counters of ethtool -S or ibqueryerrors of all nodes side by side, as differences over a minute where possible; pairwise
nccl-tests.

## Mitigation
PFC and ECN on the whole path, adaptive routing, a new cable; drain the node.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddiag.model.incident import NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.proof import name_hosts, shown

RULE = Rule(
    id="DD423",
    root_cause="RC-72",
    needs=(NodeFacts,),
    optional=(Placement,),
    capture="ethtool -S (or ibqueryerrors) of all nodes, twice, a minute apart, during training",
    symptom="bandwidth collapses at random, one node in common",
    evidence="pause, CNP, out-of-sequence or error counters of one node far above its peers'",
    applies=lambda signals: (facts := signals.get(NodeFacts)) is not None and bool(facts.of("nic.counter.")),
    explained_by=("DD913", "DD935"),
)
_HARD = ("symbol", "crc", "discard", "out_of_seq", "phy_raw", "link_down", "corrupt", "error")
"""Counters of loss; pauses and notifications are congestion."""


@dataclass(frozen=True)
class Limits:
    hosts: int = 3
    """Fewer nodes do not show what is usual."""
    times_usual: float = 10.0
    least: float = 1000.0
    """Events below this are noise."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts = signals[NodeFacts].of("nic.counter.")
    by_name: dict[str, dict[str, list[NodeFact]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        if fact.host is not None and fact.number is not None:
            by_name[fact.key][fact.host].append(fact)
    hosts = {fact.host for fact in facts}
    if len(hosts - {None}) < limits.hosts:
        if any((fact.number or 0) >= limits.least for fact in facts):
            yield Abstain("counters of fewer than three nodes do not show what is usual", RULE.capture)
        return
    odd = [found for name, rows in by_name.items() if (found := _odd(rows, limits)) is not None]
    owners = {fact.host for fact in odd}
    if len(owners) == 1:
        yield _finding(odd, signals.get(Placement))


def _odd(rows: Mapping[str, Sequence[NodeFact]], limits: Limits) -> NodeFact | None:
    """The counter of the one host that is far above the others."""
    totals = {host: _growth(found) for host, found in rows.items()}
    host = max(totals, key=lambda name: totals[name])
    others = [amount for name, amount in totals.items() if name != host]
    if len(totals) < limits.hosts or totals[host] < limits.least:
        return None
    usual = statistics.median(others)
    return rows[host][-1] if totals[host] >= limits.times_usual * max(usual, 1.0) else None


def _growth(found: Sequence[NodeFact]) -> float:
    """What a counter grew by between two readings; with one reading, its value."""
    numbers = [fact.number or 0.0 for fact in found if fact.device == found[0].device]
    return numbers[-1] - numbers[0] if len(numbers) > 1 and numbers[-1] >= numbers[0] else numbers[-1]


def _finding(odd: Sequence[NodeFact], placement: Placement | None) -> Finding:
    hosts = (str(odd[0].host),)
    hard = [fact for fact in odd if any(word in fact.key for word in _HARD)]
    worst = (hard or list(odd))[0]
    rows: tuple[Evidence, ...] = tuple(
        shown(fact.key.removeprefix("nic.counter."), fact, fact.number or 0, fact.device or "") for fact in odd[:6]
    )
    ranks = placement.ranks_of(hosts[0]) if placement is not None else ()
    return Finding(
        title=f"the network of {name_hosts(hosts)} {'loses packets' if hard else 'is congested'}: "
        f"{worst.key.removeprefix('nic.counter.')} {worst.number or 0:,.0f}, far above its peers",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, devices=tuple(dict.fromkeys(f.device for f in odd if f.device))),
        victims=tuple(ranks),
        evidence=rows,
        fix=(
            "check cable, transceiver and switch port of the node; drain it while in doubt",
            "PFC and ECN on every switch of the path, adaptive routing on",
        ),
        verify="the counters' growth over 60 s of all_reduce_perf equals the other nodes'; sendrecv_perf by pairs",
        why="the same counters are far lower on all other nodes",
        doubt="counters add up since boot: compare the growth over a minute",
    )
