"""Which transports NCCL uses, from the lines it prints for its channels."""

from __future__ import annotations

from collections.abc import Iterable

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events, NodeFacts, Settings

TRUE = ("1", "y", "yes", "true", "on")


def over_net(events: Events, *, sockets: bool) -> tuple[Event, ...]:
    """Channels between nodes over TCP sockets, or over anything else (RDMA and plugins)."""
    return tuple(
        event
        for event in events.of("nccl.channel")
        if event.get("transport") == "net" and (event.word("net").lower() == "socket") is sockets
    )


def on_transport(events: Events, *names: str) -> tuple[Event, ...]:
    return tuple(event for event in events.of("nccl.channel") if event.get("transport") in names)


def nics_by_host(events: Events) -> dict[str, frozenset[str]]:
    """RDMA devices that each host uses; several lines of one host add up."""
    found: dict[str, set[str]] = {}
    for event in events.of("nccl.nics"):
        devices = event.get("devices")
        if event.host is not None and isinstance(devices, list):
            found.setdefault(event.host, set()).update(str(name).split(":")[0] for name in devices)
    return {host: frozenset(names) for host, names in found.items()}


def switched_on(settings: Settings | None, name: str) -> bool:
    """Whether an environment variable that is a switch is on anywhere."""
    found = settings.of("env", name) if settings is not None else ()
    return any(one.value.strip().lower() in TRUE for one in found)


def values(settings: Settings | None, name: str) -> tuple[str, ...]:
    found = settings.of("env", name) if settings is not None else ()
    return tuple(dict.fromkeys(one.value for one in found))


def nvlink_between(facts: NodeFacts | None) -> bool:
    """Whether ``nvidia-smi topo -m`` shows NVLink between GPUs."""
    links = facts.of("gpu.link") if facts is not None else ()
    return any("gpu" in fact.text and "=NV" in fact.text for fact in links)


def multi_node(events: Iterable[Event]) -> bool:
    """Whether ranks of more than one host speak in *events*."""
    return len({event.host for event in events if event.host is not None}) > 1
