"""What RDMA failures in NCCL's log mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events

FLUSHED, RETRIES = 5, 12
STATUS: Mapping[int, str] = MappingProxyType(
    {
        4: "local protection error (status 4)",
        5: "flushed (status 5)",
        9: "the peer refused a request (status 9)",
        10: "remote access error (status 10)",
        11: "the peer could not do an operation (status 11)",
        12: "transport retries used up (status 12)",
        13: "the peer was not ready for too long (status 13)",
    }
)
_PORT = re.compile(r"port error|device fatal|IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL)", re.IGNORECASE)
_RDMA_LINK = re.compile(r"^(?:ib|mlx|ens|enp|eth|rdma|roce|p\d)")


def address(text: str) -> str:
    """``10.0.0.2<44206>`` without the port."""
    return re.sub(r"<\d+>$", "", text).strip("[]")


def addresses(events: Events) -> Mapping[str, str]:
    """Address -> host, as hosts call their own interfaces; addresses that two hosts claim are left out."""
    found: dict[str, set[str]] = {}
    for event in events.of("nccl.interface", "nccl.nics"):
        own = event.get("addresses")
        listed = own if isinstance(own, list) else [event.get("oob_address")]
        for one in listed:
            if one and event.host:
                found.setdefault(str(one), set()).add(event.host)
    return {one: next(iter(hosts)) for one, hosts in found.items() if len(hosts) == 1}


def port_errors(events: Events) -> tuple[Event, ...]:
    return tuple(event for event in events.of("nccl.async_event") if _PORT.search(event.word("what")))


def down_links(events: Events) -> tuple[Event, ...]:
    """Links of network devices that went down, by the kernel's log."""
    return tuple(
        event
        for event in events.of("kernel.link")
        if event.get("up") is False
        and (event.word("driver").startswith("mlx") or _RDMA_LINK.search(event.word("interface")))
    )


def by_gid(events: Events, completions: Sequence[Event]) -> tuple[Event, ...]:
    """Failed operations of RoCE devices whose own GID is link-local: no router or other subnet can answer it."""
    kinds = [kind for event in events.of("nccl.nics") for kind in _list(event.get("kinds"))]
    if not kinds or any(str(kind).upper() != "ROCE" for kind in kinds):
        return ()
    return tuple(event for event in completions if event.word("local_gid").lower().startswith("fe80"))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
