"""What NCCL says while it sets up: communicators, interfaces, transports (its INFO lines)."""

from __future__ import annotations

import re
from collections.abc import Callable

from ddiag.ingest.logs.bus_ids import packed_bus_id
from ddiag.ingest.logs.nccl_line import Said
from ddiag.model.incident import Event, Value

_INIT = re.compile(
    r"(?:\[Rank \d+\] )?(?:(?P<fn>ncclCommInit\w*|ncclCommSplit\w*|ncclCommShrink\w*|ncclCommGrow\w*) )?"
    r"comm (?P<comm>0x[0-9a-f]+)(?P<middle>.*?) rank (?P<rank>\d+) n(?:R|r)anks (?P<nranks>\d+)(?P<rest>.*?)"
    r"-? ?(?P<phase>Init START|Init COMPLETE|Abort COMPLETE|Destroy COMPLETE|Abort START|Destroy START)"
)
_NUMBER = {name: re.compile(rf"\b{name} (\d+)") for name in ("cudaDev", "nvmlDev")}
_BUS = re.compile(r"\bbusId ([0-9a-f]+)")
_COMM_ID = re.compile(r"\bcommId (0x[0-9a-f]+)")
_PARENT = re.compile(r"\bparent (0x[0-9a-f]+)")
_SECONDS = re.compile(r"total (\d+(?:\.\d+)?)")
_TIMING = re.compile(r"([A-Za-z]\w*) (\d+(?:\.\d+)?)")
_INTERFACE = re.compile(r"(?:\[\d+\])?([\w.@-]+):((?:\[[^\]]*\]|[0-9a-fA-F.:]+)(?:%[\w.-]+)?)<(\d+)>")
_DEVICE = re.compile(r"\[\d+\](\S+?:\d+)/(IB|RoCE|ROCE|\w+)(?:/SHARP)?")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (?P<src>\d+)(?:\[(?P<a>[0-9a-f]+)\])? -> (?P<dst>\d+)(?:\[(?P<b>[0-9a-f]+)\])?"
    r"(?: \[(?P<direction>send|receive)\])? via (?P<via>.+)"
)
_NET = re.compile(r"NET/(?P<net>[^/]+)/(?P<nic>\d+)(?:\((?P<pxn>\d+)\))?(?P<rest>.*)")
_GDR = re.compile(
    r"GPU Direct RDMA (Enabled|Disabled)(?: for)?(?: GPU ([0-9a-f]+) /)?(?: HCA ([0-9a-fx]+)(?: '([^']*)')?)?"
)
_DISTANCE = re.compile(r"\(distance (\d+) [<>]=? (\d+)\)")
_P2P_OFF = re.compile(r"P2P is disabled between (?:NVLINK )?connected GPUs (\d+) and (\d+)")
_CHANNELS = re.compile(r"(\d+) coll channels(?:, (\d+) (?:collnet|nvls) channels)*, (\d+) p2p channels")


def init(said: Said) -> Event | None:
    match = _INIT.search(said.text)
    if match is None:
        return None
    rest = match["middle"] + match["rest"]
    bus = _BUS.search(rest)
    fields: dict[str, Value] = {
        "phase": match["phase"].split()[1].lower()
        if match["phase"].startswith("Init")
        else match["phase"].split()[0].lower(),
        "rank": int(match["rank"]),
        "nranks": int(match["nranks"]),
        "comm": match["comm"],
        "comm_id": _group(_COMM_ID, rest),
        "parent": _group(_PARENT, rest),
        "function": match["fn"],
        "bus_id": packed_bus_id(bus[1]) if bus else None,
        "cuda_dev": _int(_NUMBER["cudaDev"], rest),
        "nvml_dev": _int(_NUMBER["nvmlDev"], rest),
    }
    return said.event("nccl.init", fields)


def _group(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else match[1]


def _int(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return None if match is None else int(match[1])


def timings(said: Said) -> Event | None:
    match = re.search(r"(Init|Bootstrap) timings", said.text)
    total = _SECONDS.search(said.text)
    if match is None or total is None:
        return None
    fields: dict[str, Value] = {"what": match[1].lower(), "total_s": float(total[1])}
    for name, value in _TIMING.findall(said.text.partition("(")[2]):
        if value.replace(".", "", 1).isdigit():
            fields[f"{name}_s"] = float(value)
    for name in ("rank", "nranks"):
        number = _int(re.compile(rf"\b{name} (\d+)"), said.text)
        if number is not None:
            fields[name] = number
    return said.event("nccl.timings", fields)


def interface(said: Said) -> Event | None:
    """``Bootstrap : Using eth0:10.0.0.1<0>``, ``NET/Socket : Using [0]eth0:… [1]…``."""
    purpose = "bootstrap" if "Bootstrap" in said.text else "socket"
    found = _INTERFACE.findall(said.text)
    if not found:
        return None
    names: list[Value] = [name for name, _, _ in found]
    addresses: list[Value] = [address for _, address, _ in found]
    return said.event("nccl.interface", {"purpose": purpose, "interfaces": names, "addresses": addresses})


def nics(said: Said) -> Event | None:
    found = _DEVICE.findall(said.text)
    if not found:
        return None
    oob = _INTERFACE.search(said.text.partition("OOB")[2])
    fields: dict[str, Value] = {
        "devices": [name for name, _ in found],
        "kinds": [kind for _, kind in found],
        "oob": oob[1] if oob else None,
        "oob_address": oob[2] if oob else None,
    }
    return said.event("nccl.nics", fields)


def network(said: Said) -> Event | None:
    match = re.search(r"Using network (.+)", said.text)
    return None if match is None else said.event("nccl.network", {"name": match[1].strip()})


def no_rdma(said: Said) -> Event | None:
    text = said.text
    if "Failed to open libibverbs" in text or ("libibverbs.so" in text and "not found" in text.lower()):
        return said.event("nccl.no_rdma", {"reason": "no_library", "what": text})
    if re.search(r"NET/IB ?: No device found", text):
        return said.event("nccl.no_rdma", {"reason": "no_device", "what": text})
    if re.search(
        r"NET/OFI .*(?:No eligible providers|failed|unable)|NET/Plugin: Failed(?!.*symbol)", text, re.IGNORECASE
    ):
        return said.event("nccl.no_rdma", {"reason": "no_plugin", "what": text})
    return None


def channel(said: Said) -> Event | None:
    match = _CHANNEL.search(said.text)
    if match is None:
        return None
    fields: dict[str, Value] = {
        "src": int(match["src"]),
        "dst": int(match["dst"]),
        "src_device": match["a"],
        "dst_device": match["b"],
        "direction": match["direction"] or "",
    }
    return said.event("nccl.channel", fields | transport(match["via"].strip()))


def transport(via: str) -> dict[str, Value]:
    """``P2P/IPC``, ``SHM/direct/direct``, ``direct shared memory`` (2.10), ``NET/IB/0(3)/GDRDMA(PCI)/Shared``."""
    kind = via.partition("/")[0].upper()
    net = _NET.search(via)
    if net is not None:
        return {
            "transport": "net",
            "net": net["net"],
            "nic": int(net["nic"]),
            "via": int(net["pxn"]) if net["pxn"] else None,
            "gdr": "GDRDMA" in net["rest"],
            "detail": via,
        }
    if kind == "P2P":
        return {"transport": "p2p", "detail": via.partition("/")[2]}
    if kind == "SHM" or "shared memory" in via:
        return {"transport": "shm", "detail": via}
    return {"transport": via.partition("/")[0].lower(), "detail": via}


def connected(said: Said) -> Event | None:
    match = re.search(r"Connected all (rings|trees)", said.text)
    return None if match is None else said.event("nccl.connected", {"what": match[1]})


def gdr(said: Said) -> Event | None:
    match = _GDR.search(said.text)
    if match is None:
        return None
    distance = _DISTANCE.search(said.text)
    fields: dict[str, Value] = {
        "enabled": match[1] == "Enabled",
        "gpu": match[2],
        "nic": match[4] or match[3],
        "distance": int(distance[1]) if distance else None,
        "limit": int(distance[2]) if distance else None,
    }
    return said.event("nccl.gdr", fields)


def p2p_disabled(said: Said) -> Event | None:
    match = _P2P_OFF.search(said.text)
    return None if match is None else said.event("nccl.p2p_disabled", {"a": int(match[1]), "b": int(match[2])})


def nvls(said: Said) -> Event | None:
    match = re.search(r"NVLS multicast support is (not )?available", said.text)
    return None if match is None else said.event("nccl.nvls", {"available": match[1] is None})


def channels(said: Said) -> Event | None:
    match = _CHANNELS.search(said.text)
    if match is None:
        return None
    return said.event("nccl.channels", {"coll": int(match[1]), "p2p": int(match[3])})


FACTS: tuple[tuple[str, Callable[[Said], Event | None]], ...] = (
    ("Channel ", channel),
    ("Ring ", channel),
    ("nranks ", init),
    ("nRanks ", init),
    ("timings", timings),
    ("Bootstrap : Using", interface),
    ("Bootstrap: Using", interface),
    ("NET/Socket : Using", interface),
    ("NET/Socket: Using", interface),
    ("NET/IB : Using", nics),
    ("NET/IB: Using", nics),
    ("NET/IBext", nics),
    ("Using network", network),
    ("libibverbs", no_rdma),
    ("No device found", no_rdma),
    ("NET/OFI", no_rdma),
    ("NET/Plugin: Failed", no_rdma),
    ("Connected all", connected),
    ("GPU Direct RDMA", gdr),
    ("P2P is disabled", p2p_disabled),
    ("NVLS multicast", nvls),
    ("coll channels", channels),
)
"""A literal that the message must hold, and who reads it."""
