"""Network interfaces, the one that libraries would choose, names and ports."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from ddiag.schema.node import CouldNot, Fact
from ddiag.supervise.proc import read_text

NET = Path("/sys/class/net")
DEFAULT_PORT = 29500
"""torchrun's."""
_UP = 0x1
_GET_ADDRESS = 0x8915
"""IFF_UP and SIOCGIFADDR of Linux."""
_LISTENING = "0A"
"""State in /proc/net/tcp."""
_VIRTUAL = re.compile(r"^(docker|br-|veth|virbr|cni|flannel|cali|tunl|kube|weave|lxc|podman|ifb|dummy|cilium)")


def facts() -> Iterator[Fact | CouldNot]:
    """See the module."""
    for _, name in sorted(socket.if_nameindex(), key=lambda entry: entry[1]):
        yield Fact("net.up", bool((number_of(name, "flags", base=16) or 0) & _UP), name)
        yield Fact("net.addressed", any(map(_reachable, _addresses(name))), name)
        yield Fact("net.virtual", bool(_VIRTUAL.match(name)), name)
        for key, file in (("net.speed_mbps", "speed"), ("net.mtu", "mtu")):
            value = number_of(name, file)
            if value is not None and value > 0:
                yield Fact(key, value, name)
    yield from _own_name()
    yield Fact("net.default_port_in_use", DEFAULT_PORT in _listening())
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "MASTER_ADDR"):
        if os.environ.get(name):
            yield Fact(f"env.{name}", os.environ[name])


def number_of(interface: str, file: str, *, base: int = 10) -> int | None:
    """A number below /sys/class/net/INTERFACE; None when there is none."""
    try:
        return int(read_text(NET / interface / file).strip(), base)
    except ValueError:
        return None


def _addresses(interface: str) -> list[str]:
    """Its IPv4 address, and its IPv6 ones as eight groups."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            found.append(socket.inet_ntoa(fcntl.ioctl(asked.fileno(), _GET_ADDRESS, request)[20:24]))
        except OSError:
            found = []
    rows = (line.split() for line in read_text("/proc/net/if_inet6").splitlines())
    return found + [row[0] for row in rows if len(row) == 6 and row[5] == interface]


def _reachable(address: str) -> bool:
    """Neither loopback nor link-local."""
    loopback_v6 = "0" * 31 + "1"
    return not (address.startswith(("127.", "169.254.", "fe80")) or address == loopback_v6)


def _own_name() -> Iterator[Fact | CouldNot]:
    """Where other nodes are sent when they look this one up by name."""
    name = socket.gethostname()
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(name, None)}
    except OSError as error:
        yield CouldNot("own host name", f"{name} cannot be looked up ({error.strerror or error})")
        return
    yield Fact("net.name_is_loopback", all(str(address).startswith(("127.", "::1")) for address in found))


def _listening() -> set[int]:
    rows = (line.split() for name in ("tcp", "tcp6") for line in read_text(f"/proc/net/{name}").splitlines()[1:])
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == _LISTENING}
