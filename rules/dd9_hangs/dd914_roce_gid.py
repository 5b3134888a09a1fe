"""RoCE is set up so that two nodes cannot reach each other: wrong GID, missing route, or rails that do not meet.

## Meaning
A queue pair could not be brought up: the GID used is link-local or RoCE v1, its index differs between nodes, there is
no route between the addresses, or a rail-only network is asked for traffic across rails.

## Impact
The job fails at init or at its first collective; InfiniBand clusters never see it.

## Diagnosis
`Call to ibv_modify_qp failed` with Connection timed out, Network is unreachable or Invalid argument, and the GIDs of
both sides. Hours into a job it is a link (status 12); `socket…` messages are the TCP side channel.

## Mitigation
NCCL_IB_GID_INDEX=3 (the RoCE v2 IPv4 GID of show_gids), or leave it unset from NCCL 2.21 on; NCCL_CROSS_NIC=0 on
rail-only networks; policy routing per NIC; equal MTU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement, distinct_hosts
from ddiag.model.signals_incident import Events, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.proof import lines, name_hosts, shown
from ddiag.rulekit.rdma import FLUSHED, by_gid, port_errors
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD914",
    root_cause="RC-14",
    needs=(Events,),
    optional=(Settings, Placement),
    capture="NCCL_DEBUG=INFO logs of all nodes and show_gids of two of them",
    symptom="fails at init or at the first collective on RoCE only",
    evidence="ibv_modify_qp failed, link-local or RoCE v1 GID, GID index that differs between nodes",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None and events.has("nccl.qp_error", "nccl.completion_error")
    ),
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-gid-index",),
)
_FIX = (
    "NCCL_IB_GID_INDEX=3: the index that show_gids gives as v2 with an IPv4 address, the same on all nodes; from NCCL "
    "2.21 on rather unset it and set NCCL_IB_ROCE_VERSION_NUM=2",
    "rail-only network: NCCL_CROSS_NIC=0 and NCCL_IB_HCA==… in the same order on all nodes",
    "several NICs in one subnet: policy routing per NIC (ip rule, own tables), arp_ignore=1, equal MTU",
)


@dataclass(frozen=True)
class Limits:
    hosts_to_compare: int = 3
    """Nodes from which one with another GID index is called the odd one."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals[Events]
    failed = list(events.of("nccl.qp_error"))
    completions = [event for event in events.of("nccl.completion_error") if event.integer("status") != FLUSHED]
    seen = failed or list(by_gid(events, completions))
    if not seen or (not failed and port_errors(events)):
        return
    odd = _odd(seen, limits) or _link_local(failed)
    settings = signals.get(Settings)
    pinned = settings.of("env", "NCCL_IB_GID_INDEX") if settings is not None else ()
    local = any(event.word("local_gid").lower().startswith("fe80") for event in seen)
    differ = len({event.integer("gid_index") for event in failed} - {None}) > 1
    where = name_hosts(odd) if odd else name_hosts(distinct_hosts(event.host for event in seen))
    how = ": its GID is link-local" if local else ": GID indices differ" if differ else ""
    yield Finding(
        title=f"RDMA connections of {where} cannot be made ({seen[0].word('error') or 'retries used up'}){how}",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if failed and (local or differ) else Confidence.MEDIUM,
        culprits=Culprits(hosts=odd, where="NCCL_IB_GID_INDEX"),
        evidence=(*lines("NCCL", seen), *_rows(failed), *(shown(one.key, one) for one in pinned[:2])),
        fix=_FIX,
        verify="ib_write_bw -x 3 -d mlx5_0 between the two nodes; then all_reduce_perf and alltoall_perf on both",
        why="the queue pair could not be brought up" if failed else "a link-local GID reaches no other subnet",
        doubt=""
        if local or differ
        else "without show_gids of both nodes, a missing route looks the same as a wrong GID",
        state=State.CRASHED,
        began_ns=began(seen),
    )


def _odd(seen: Sequence[Event], limits: Limits) -> tuple[str, ...]:
    """The hosts whose GID index is not that of most."""
    indices = {
        event.host: event.integer("gid_index") for event in seen if event.host and event.get("gid_index") is not None
    }
    counts = Counter(indices.values())
    if len(indices) < limits.hosts_to_compare or len(counts) < 2:
        return ()
    usual, most = counts.most_common(1)[0]
    return tuple(host for host, index in indices.items() if index != usual) if 2 * most > len(indices) else ()


def _link_local(failed: Sequence[Event]) -> tuple[str, ...]:
    """The one host that offers a link-local GID to peers with routable ones."""
    hosts = {
        event.host
        for event in failed
        if event.host
        and event.word("local_gid").lower().startswith("fe80")
        and not event.word("remote_gid").lower().startswith("fe80")
    }
    return tuple(hosts) if len(hosts) == 1 else ()


def _rows(failed: Sequence[Event]) -> tuple[Evidence, ...]:
    known = [event for event in failed if event.get("gid_index") is not None]
    return tuple(
        Evidence(f"GID index on {event.host or 'a node'}", event.integer("gid_index") or 0, "", None, event.source)
        for event in known[:3]
    )
