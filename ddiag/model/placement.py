"""Where ranks run: rank -> host, process and device, as far as the evidence connects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Seat:
    """Where one rank runs."""

    rank: int
    host: str | None = None
    bus_id: str | None = None
    """0000:3b:00.0"""
    pid: int | None = None
    source: str = ""
    """What says so."""
    assumed: bool = False
    """The device is that of the local rank's number, which nothing contradicts and nothing states."""


@dataclass(frozen=True)
class Placement:
    """Hosts, devices and who runs on them. Hosts match with or without their domain."""

    seats: tuple[Seat, ...] = ()
    hosts: tuple[str, ...] = ()
    """Every host that the evidence names."""
    bus_of: Mapping[tuple[str | None, int], str] = field(default_factory=dict)
    """(host, nvidia-smi index) -> bus id; host None where a tool's output names none."""
    world_size: int | None = None

    def host(self, named: str | None) -> str | None:
        """*named*, or the only host there is."""
        return named or (self.hosts[0] if len(self.hosts) == 1 else None)

    def host_of(self, rank: int) -> str | None:
        return next((seat.host for seat in self.seats if seat.rank == rank and seat.host), None)

    def on_device(self, host: str | None, bus_id: str | None) -> tuple[Seat, ...]:
        """Who runs on a device. Without a host the device must be unambiguous."""
        if bus_id is None:
            return ()
        found = [seat for seat in self.seats if seat.bus_id == bus_id and same_host(seat.host, self.host(host))]
        return tuple(found) if len({seat.host for seat in found}) <= 1 else ()

    def of_process(self, host: str | None, pid: int | None) -> tuple[Seat, ...]:
        """The rank of a process. Process numbers differ inside containers: no match says nothing."""
        if pid is None:
            return ()
        found = [seat for seat in self.seats if seat.pid == pid and same_host(seat.host, self.host(host))]
        return tuple(found) if len(found) == 1 else ()

    def ranks_of(self, host: str) -> tuple[int, ...]:
        return tuple(sorted({seat.rank for seat in self.seats if seat.host and same_host(seat.host, host)}))

    def bus(self, host: str | None, device: str | None) -> str | None:
        """Bus id of ``gpu3`` or of a bus id."""
        if device is None or not device.startswith("gpu"):
            return device
        index = int(device[3:]) if device[3:].isdigit() else -1
        return next((bus for (on, i), bus in self.bus_of.items() if i == index and same_host(on, host)), None)

    def name(self, host: str | None, bus_id: str | None) -> str:
        """``GPU 2 (0000:3b:00.0)`` where the index is known."""
        index = next((i for (on, i), bus in self.bus_of.items() if bus == bus_id and same_host(on, host)), None)
        return str(bus_id) if index is None else f"GPU {index} ({bus_id})"


def same_host(a: str | None, b: str | None) -> bool:
    """Whether two names may be one host: unknown matches all, a domain does not matter."""
    if a is None or b is None or a == b:
        return True
    return _short(a) == _short(b)


def _short(name: str) -> str:
    first = name.split(".", 1)[0].lower()
    return name if first.isdigit() else first


def distinct_hosts(names: Iterable[str | None]) -> tuple[str, ...]:
    """Names without repetition; of ``gn31`` and ``gn31.cluster`` the first met stays."""
    kept: list[str] = []
    for name in names:
        if name and not any(same_host(name, other) for other in kept):
            kept.append(name)
    return tuple(kept)
