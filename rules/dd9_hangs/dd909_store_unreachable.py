"""The store or rendezvous of the job cannot be reached.

## Meaning
Before any collective, all ranks meet at a TCPStore on the master (torchrun: the rendezvous endpoint). Clients that
cannot connect print the address they tried.

## Impact
The job does not start, and fails after the connection time-out (60 to 900 s).

## Diagnosis
"The client socket has timed out … while trying to connect to (HOST, PORT)", or RendezvousConnectionError. A key that
never came is another matter: then the store was there and a rank was late.

## Mitigation
Look at the master first: did its process start, on which address does it listen, is the port open?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View
from ddiag.rulekit.values import began, hosts_of, ranks_of

RULE = Rule(
    id="DD909",
    root_cause="RC-09",
    needs=(Events,),
    capture="the logs of all nodes; on the master `ss -ltnp | grep PORT`, on a worker `nc -vz MASTER PORT`",
    symptom="The client socket has timed out after 900s while trying to connect; RendezvousConnectionError",
    evidence="time-outs of client sockets to one address and port",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and events.has("store.connect_timeout", "launcher.rendezvous_failed")
    ),
    explained_by=("DD906", "DD907", "DD922", "DD929", "DD930", "DD981"),
)
_LOCAL = ("127.", "localhost", "::1")


@dataclass(frozen=True)
class Limits:
    """A connection that times out is one; there is nothing to set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals[Events]
    tried: dict[tuple[str, int | None], list[Event]] = defaultdict(list)
    for event in events.of("store.connect_timeout"):
        tried[event.word("address"), event.integer("port")].append(event)
    places = sorted(tried, key=lambda place: -len(tried[place]))
    for address, port in places:
        yield _finding(address, port, tried[address, port], events)
    failed = events.of("launcher.rendezvous_failed")
    if failed and not tried:
        yield _rendezvous(failed)


def _finding(address: str, port: int | None, seen: Sequence[Event], events: Events) -> Finding:
    taken = [e for e in events.of("store.port_in_use") if e.integer("port") in (None, port)]
    retried = [e for e in events.of("store.connect_retry") if e.integer("port") == port]
    loop = address.startswith(_LOCAL)
    longest = max((event.integer("timeout_ms") or 0 for event in seen), default=0) / 1000
    why = "other nodes cannot reach a loopback address" if loop else "nothing answered at that address in that time"
    return Finding(
        title=f"nothing answers at {address}:{port}, where the ranks meet ({longest:g} s)"
        + (": the port is taken by another process" if taken else ""),
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(hosts=(address,), where=f"{address}:{port}"),
        victims=ranks_of(seen),
        evidence=tuple(
            Evidence(label, event.text[-160:], "", None, event.source)
            for label, found in (("timed out", seen[:4]), ("tried before", retried[:2]), ("port taken", taken[:1]))
            for event in found
        ),
        fix=(
            "read the log of rank 0 first: when its process died or never started, nothing listens",
            "MASTER_ADDR / --rdzv-endpoint: an address that the other nodes reach (not a name that /etc/hosts maps to "
            "127.0.1.1), and one --rdzv-id on all nodes",
            f"open the port between the nodes (firewall, network policy): {port}; as many nodes as --nnodes says",
        ),
        verify=f"on a worker, while the master runs: nc -vz {address} {port}; on the master: ss -ltnp | grep {port}",
        why=why,
        doubt="" if loop or len(hosts_of(seen)) > 1 else "the network between or the master's process: nc tells",
        state=State.CRASHED,
        began_ns=began(seen),
    )


def _rendezvous(failed: Sequence[Event]) -> Finding:
    return Finding(
        title=f"the rendezvous failed: {failed[0].word('error')}"[:200],
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(where="--rdzv-endpoint"),
        evidence=tuple(Evidence("said", event.text[-160:], "", None, event.source) for event in failed[:4]),
        fix=(
            "--rdzv-endpoint: an address and port of one node that all others reach, the same --rdzv-id everywhere",
            "start all nodes within the join time-out: --rdzv-conf join_timeout=1800",
            "read the log of the node that hosts the endpoint first",
        ),
        verify="nc -vz ENDPOINT PORT from every node while that node's torchrun runs",
        why="torchrun could not bring the nodes together",
        doubt="the log of the endpoint's node tells whether it was there",
        state=State.CRASHED,
        began_ns=began(failed),
    )
