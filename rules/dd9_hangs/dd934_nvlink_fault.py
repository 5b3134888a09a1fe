"""NVLink broke: links, or the switch between them, report fatal errors.

## Meaning
Xid 74, or 144 to 150 on NVLink 5, marked fatal, fatal SXid of an NVSwitch, or the uncorrectable NVLink error of CUDA.
Several GPUs at once point to a switch, tray or cable that they share.

## Impact
Collectives inside the node (or rack) hang or fail; NCCL may fall back to slower transports after a restart.

## Diagnosis
Kernel lines by board and link. `Nonfatal` lines were recovered from and alarm nobody; Xid 45 `caused by previous Xid N`
follows.

## Mitigation
Drain the node, read the fabric manager's log, reset GPUs and switches together, reseat; replace what repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event, NodeFact
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.faults import actions, assumed_words, codes_in_words, culprits, nvlink_boards
from ddiag.rulekit.proof import hosts_among, lines, name_hosts, shown
from ddiag.rulekit.values import began, ranks_of

RULE = Rule(
    id="DD934",
    root_cause="RC-34",
    needs=(),
    optional=(Events, NodeFacts, Placement),
    capture="dmesg -T, nvidia-smi nvlink -e and the fabric manager's log of the node",
    symptom="uncorrectable NVLink error, or a hang inside one node or rack",
    evidence="fatal Xid 74 or 144-150, fatal SXid, link counters that grow on one GPU",
    applies=lambda signals: (
        (
            (events := signals.get(Events)) is not None
            and events.has("kernel.xid", "kernel.sxid", "gpu.cuda_hardware_error")
        )
        or ((facts := signals.get(NodeFacts)) is not None and bool(facts.of("gpu.nvlink.")))
    ),
    explained_by=("DD907",),
    references=("https://docs.nvidia.com/deploy/xid-errors/",),
)
_FABRIC = (
    "drain the node; nvidia-smi nvlink -e, nvidia-smi nvlink -s, /var/log/fabricmanager.log",
    "reset GPUs and NVSwitches together (systemctl restart nvidia-fabricmanager after it), or power-cycle",
    "replace the GPU, tray or cable on which it comes back",
)
_VERIFY = "dmesg -T | grep -E 'Xid|SXid' stays empty and nvidia-smi nvlink -e counts nothing during all_reduce_perf"


@dataclass(frozen=True)
class Limits:
    recovery_errors: int = 1
    """Link recoveries from which a link is called bad; replays alone are repaired on the fly."""
    replay_errors: int = 1000
    """Replays from which a link is worth a look."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, placement = signals.get(Events) or Events(()), signals.get(Placement)
    hit = nvlink_boards(events)
    switches = [event for event in events.of("kernel.sxid") if event.get("fatal")]
    by_cuda = [event for event in events.of("gpu.cuda_hardware_error") if event.get("what") == "nvlink"]
    if hit:
        named = culprits(hit, placement)
        seen: list[Event] = [event for board in hit for event in board.events]
        codes = tuple(dict.fromkeys(code for board in hit for code in board.codes))
        on = f" on {name_hosts(named.hosts)}" if named.hosts else ""
        yield Finding(
            title=f"NVLink failed at {_count(named.devices)}{on}: {codes_in_words(codes[:2])}",
            severity=Severity.CRITICAL,
            confidence=Confidence.HIGH,
            culprits=named,
            evidence=(*lines("kernel", seen), *lines("switch", switches), *lines("CUDA", by_cuda, 2)),
            fix=(*actions(codes[:1]), *_FABRIC[1:]),
            verify=_VERIFY,
            why="several GPUs at once share a switch or tray" if len(hit) > 1 else "the driver names GPU and link",
            doubt=assumed_words(hit, placement),
            state=State.CRASHED,
            began_ns=began(seen),
        )
    elif switches or by_cuda:
        seen = [*switches, *by_cuda]
        hosts = hosts_among(seen, placement)
        yield Finding(
            title=f"NVLink failed on {name_hosts(hosts)}: "
            + (f"fatal SXid {switches[0].get('code')} of an NVSwitch" if switches else by_cuda[0].word("message")),
            severity=Severity.CRITICAL,
            confidence=Confidence.HIGH,
            culprits=Culprits(ranks=() if switches else ranks_of(by_cuda), hosts=hosts),
            evidence=lines("switch" if switches else "error", seen),
            fix=_FABRIC,
            verify=_VERIFY,
            why="only a fault of links or switches is reported like this",
            state=State.CRASHED,
            began_ns=began(seen),
        )
    else:
        yield from _counters(signals.get(NodeFacts), placement, limits)
        yield from _inactive(signals.get(NodeFacts), placement)


def _count(devices: tuple[str, ...]) -> str:
    return ", ".join(devices) if len(devices) <= 4 else f"{len(devices)} GPUs"


def _counters(facts: NodeFacts | None, placement: Placement | None, limits: Limits) -> Iterator[Finding]:
    """Counters of `nvidia-smi nvlink -e`; without times, so a warning only."""
    bad = []
    for fact in facts.of("gpu.nvlink.") if facts is not None else ():
        most = limits.replay_errors if "replay" in fact.key else limits.recovery_errors
        if fact.key.endswith(("errors", "error")) and (fact.number or 0) >= most and "flit" not in fact.key:
            bad.append(fact)
    if not bad:
        return
    hosts = hosts_among(bad, placement)
    devices = tuple(dict.fromkeys(fact.device for fact in bad if fact.device))
    rows = [shown(f"{fact.device} {fact.key.removeprefix('gpu.nvlink.')}", fact, fact.number or 0) for fact in bad[:6]]
    evidence: tuple[Evidence, ...] = tuple(rows)
    yield Finding(
        title=f"{', '.join(devices[:4])} on {name_hosts(hosts)}: NVLinks had to recover from errors",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, devices=devices),
        evidence=evidence,
        fix=_FABRIC,
        verify=_VERIFY,
        why="a healthy link recovers from nothing",
        doubt="counters add up since the last reset: compare two readings a minute apart under load",
    )


def _inactive(facts: NodeFacts | None, placement: Placement | None) -> Iterator[Finding]:
    """Links of `nvidia-smi nvlink -s` that are down on some GPUs, while most GPUs have all of theirs."""
    down: dict[str, list[NodeFact]] = {}
    for fact in facts.of("gpu.nvlink.") if facts is not None else ():
        if fact.key.endswith(".gbs") and fact.device is not None:
            down.setdefault(fact.device, []).extend([fact] if not fact.number else [])
    odd = {device: found for device, found in down.items() if found}
    if not odd or 2 * len(odd) >= len(down):
        return
    seen = [fact for found in odd.values() for fact in found]
    hosts = hosts_among(seen, placement)
    yield Finding(
        title=f"{', '.join(list(odd)[:4])} on {name_hosts(hosts)}: {len(seen)} NVLinks are down that its peers have",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, devices=tuple(odd)),
        evidence=tuple(shown(f"{fact.device} {fact.key.removeprefix('gpu.nvlink.')}", fact) for fact in seen[:6]),
        fix=_FABRIC,
        verify=_VERIFY,
        why="most GPUs of the node have all their links up",
        doubt="boards that are bridged in pairs differ by design",
    )
