"""Kernel messages (dmesg, syslog, journal): faults of GPUs, NVSwitches, PCIe, RDMA devices, memory and storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ddiag.ingest.logs.bus_ids import BUS, bus_id
from ddiag.ingest.logs.kernel_memory import oom_kill
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Value

Fields = Mapping[str, Value]
Reader = Callable[[Line], Event | None]

_XID = re.compile(rf"Xid \((?:PCI:)?({BUS})\): (\d+)(?:, ?|\s|$)(.*)")
_SXID = re.compile(rf"(?:(nvidia-nvswitch\d+): )?SXid \((?:PCI:)?({BUS})\): (\d+), ?(.*)")
_PID = re.compile(r"^pid='?(\d+|<unknown>|N/A)'?(?:, name='?([^,']*)'?)?(?:, |$)")
_LINK = re.compile(r"\bLink (-?\d+)|on link (\d+)|link (?:index )?(-?\d+)", re.IGNORECASE)
_SEVERITY = re.compile(r"\b(Non-?fatal|Fatal)\b", re.IGNORECASE)
_CAUSED = re.compile(r"caused by previous Xid (\d+)")
_ACTION = re.compile(r"recovery action changed from \S+ \(([^)]*)\) to \S+ \(([^)]*)\)")
_LOST = re.compile(
    rf"NVRM: (?:GPU (?:at )?(?:PCI:)?({BUS}):? .*(?:fallen off the bus|RmInitAdapter failed)|"
    rf"The NVIDIA GPU ({BUS}).*|.*rm_init_adapter failed.*)"
)
_AMD_LOST = re.compile(
    rf"amdgpu ({BUS}): .*?(device lost from bus|uncorrectable hardware errors detected.*|GPU hang|GPU reset.* failed)"
)
_AER = re.compile(rf"({BUS}): PCIe Bus Error: severity=([\w ()-]+?), (?:type=([^,]+))?(.*)")
_AER_SUMMARY = re.compile(rf"({BUS}): AER: (Corrected|Uncorrected|Uncorrectable|Multiple Corrected)[^:]*error")
_IF_LINK = re.compile(
    rf"(?:(\w+) ({BUS}) )?([\w.@-]+?)(?:: )?(?:NIC )?Link is (Up|Down)|"
    rf"(mlx5_core|mlx4_core|bnxt_en|ice|ib\w*) ({BUS})(?:[ :]+([\w.-]+))?: Link (up|down)",
    re.IGNORECASE,
)
_PORT_LINK = re.compile(rf"mlx5_core ({BUS}) ([\w.-]+): Port: \d+ Link (ACTIVE|DOWN)")
_MLX5 = re.compile(rf"mlx5_core ({BUS})[^:]*: (.*)")
_HUNG = re.compile(r"task (\S+?):(\d+) blocked for more than (\d+) seconds")
_NFS = re.compile(r"nfs: server (\S+) (not responding|OK)")
_SEGFAULT = re.compile(r"(\S+)\[(\d+)\]: segfault at (?:\S+) ip \S+ sp \S+ error \d+(?: in (\S+))?")
_IO = re.compile(
    r"(?:I/O error, dev (\w+)|EXT4-fs error \(device (\w+)\)|(nvme\d+): .*(?:timeout|reset controller)|"
    r"XFS \((\w+)\): .*(?:error|shutdown)|blk_update_request: I/O error, dev (\w+))"
)
_IOMMU = re.compile(
    rf"(?:AMD-Vi: Event logged \[IO_PAGE_FAULT[^\]]*device=({BUS})|DMAR: .*fault.*device \[({BUS})\]|"
    rf"arm-smmu.*(?:event|fault))"
)
_SYSLOG_HOST = re.compile(r"(?:^|\s)([A-Za-z0-9][\w.-]*) kernel: ")
_HARMLESS = re.compile(r"slot advertised sufficient power|Port module event.*Cable plugged|firmware version|MLX5E: ")


def _xid(line: Line) -> Event | None:
    match = _XID.search(line.text)
    if match is None or "SXid" in line.text[max(match.start() - 1, 0) : match.end()]:
        return None
    pid, process, rest = _process(match[3])
    action, caused = _ACTION.search(rest), _CAUSED.search(rest)
    fields: Fields = {
        "code": int(match[2]),
        "bus_id": bus_id(match[1]),
        "pid": pid,
        "process": process,
        "detail": rest.strip(),
        "link": _link(rest),
        "fatal": _fatal(rest),
        "caused_by": int(caused[1]) if caused else None,
        "action": action[2] if action else None,
    }
    return Event("kernel.xid", fields)


def _process(rest: str) -> tuple[int | None, str | None, str]:
    match = _PID.match(rest)
    if match is None:
        return None, None, rest
    pid = int(match[1]) if match[1].isdigit() else None
    name = match[2] if match[2] and match[2] != "<unknown>" else None
    return pid, name, rest[match.end() :]


def _fatal(text: str) -> bool | None:
    match = _SEVERITY.search(text)
    return None if match is None else match[1].lower() == "fatal"


def _link(text: str) -> int | None:
    match = _LINK.search(text)
    return None if match is None else int(next(group for group in match.groups() if group is not None))


def _sxid(line: Line) -> Event | None:
    match = _SXID.search(line.text)
    if match is None:
        return None
    fields: Fields = {
        "code": int(match[3]),
        "bus_id": bus_id(match[2]),
        "switch": match[1],
        "detail": match[4].strip(),
        "link": _link(match[4]),
        "fatal": bool(_fatal(match[4])),
    }
    return Event("kernel.sxid", fields)


def _lost(line: Line) -> Event | None:
    amd = _AMD_LOST.search(line.text)
    if amd is not None:
        return Event("kernel.gpu_lost", {"bus_id": bus_id(amd[1]), "detail": amd[2]})
    match = _LOST.search(line.text)
    if match is None or "Xid" in line.text:
        return None
    address, detail = match[1] or match[2], match[0][6:]
    if match[2] is not None:
        detail = " ".join([detail, *(after.text.strip() for after in line.following(3))])
        if "fallen off the bus" not in detail:
            return None  # the same beginning says that a board is not supported
    return Event("kernel.gpu_lost", {"bus_id": bus_id(address) if address else None, "detail": detail})


def _aer(line: Line) -> Event | None:
    match = _AER.search(line.text)
    if match is not None:
        return Event(
            "kernel.aer",
            {"bus_id": bus_id(match[1]), "severity": _aer_severity(match[2]), "layer": match[3], "detail": match[4]},
        )
    summary = _AER_SUMMARY.search(line.text)
    if summary is None:
        return None
    severity = "corrected" if "Corrected" in summary[2] else "nonfatal"
    return Event("kernel.aer", {"bus_id": bus_id(summary[1]), "severity": severity, "layer": None, "detail": ""})


def _aer_severity(text: str) -> str:
    lower = text.lower()
    if "corrected" in lower and "uncorrected" not in lower:
        return "corrected"
    return "nonfatal" if "non" in lower else "fatal"


def _port_link(line: Line) -> Event | None:
    """``mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN``."""
    match = _PORT_LINK.search(line.text)
    if match is None:
        return None
    fields: Fields = {
        "interface": match[2],
        "up": match[3] == "ACTIVE",
        "bus_id": bus_id(match[1]),
        "driver": "mlx5_core",
    }
    return Event("kernel.link", fields)


def _if_link(line: Line) -> Event | None:
    match = _IF_LINK.search(line.text)
    if match is None:
        return None
    driver, address, interface, state = (
        (match[1], match[2], match[3], match[4]) if match[4] else match.group(5, 6, 7, 8)
    )
    fields: Fields = {
        "interface": interface,
        "up": state.lower() == "up",
        "bus_id": bus_id(address) if address else None,
        "driver": driver,
    }
    return Event("kernel.link", fields)


def _mlx5(line: Line) -> Event | None:
    match = _MLX5.search(line.text)
    if match is None or _HARMLESS.search(line.text) or _IF_LINK.search(line.text):
        return None
    return Event("kernel.mlx5", {"bus_id": bus_id(match[1]), "what": match[2].strip()})


def _hung(line: Line) -> Event | None:
    match = _HUNG.search(line.text)
    return match and Event("kernel.hung_task", {"process": match[1], "pid": int(match[2]), "seconds": int(match[3])})


def _nfs(line: Line) -> Event | None:
    match = _NFS.search(line.text)
    return match and Event("kernel.nfs", {"server": match[1], "ok": match[2] == "OK"})


def _segfault(line: Line) -> Event | None:
    match = _SEGFAULT.search(line.text)
    return match and Event("kernel.segfault", {"process": match[1], "pid": int(match[2]), "where": match[3]})


def _machine_check(line: Line) -> Event | None:
    if not re.search(r"mce: \[Hardware Error\]|Machine check events logged|EDAC .*\bUE\b", line.text):
        return None
    return Event("kernel.machine_check", {"detail": line.text.strip()[-200:]})


def _io(line: Line) -> Event | None:
    match = _IO.search(line.text)
    if match is None:
        return None
    return Event("kernel.io_error", {"device": next(filter(None, match.groups()), None), "detail": match[0]})


def _iommu(line: Line) -> Event | None:
    match = _IOMMU.search(line.text)
    if match is None:
        return None
    address = match[1] or match[2]
    return Event("kernel.iommu_fault", {"bus_id": bus_id(address) if address else None, "detail": match[0]})


_READERS: tuple[tuple[str, Reader], ...] = (
    ("SXid (", _sxid),
    ("Xid (", _xid),
    ("NVRM: ", _lost),
    ("device lost from bus", _lost),
    ("uncorrectable hardware errors", _lost),
    ("GPU reset", _lost),
    ("PCIe Bus Error", _aer),
    ("AER: ", _aer),
    ("oom-kill:", oom_kill),
    ("Killed process", oom_kill),
    (" Link ACTIVE", _port_link),
    (" Link DOWN", _port_link),
    ("Link is ", _if_link),
    ("Link up", _if_link),
    ("Link down", _if_link),
    ("Link Up", _if_link),
    ("Link Down", _if_link),
    ("mlx5_core ", _mlx5),
    ("blocked for more than", _hung),
    ("nfs: server", _nfs),
    ("segfault at", _segfault),
    ("[Hardware Error]", _machine_check),
    ("Machine check", _machine_check),
    ("I/O error, dev", _io),
    ("EXT4-fs error", _io),
    ("nvme nvme", _io),
    ("IO_PAGE_FAULT", _iommu),
    ("DMAR: ", _iommu),
)
"""A literal that the line must hold, and who reads it; the first that knows the line has it."""


def _on_host(event: Event, line: Line) -> Event:
    """Syslog and journal name the host before ``kernel:``."""
    match = _SYSLOG_HOST.search(line.raw or line.text)
    return event if line.host or match is None else replace(event, host=match[1])


class KernelLog:
    """Kernel messages, in whatever envelope they come."""

    needles: tuple[str, ...] = tuple(dict.fromkeys(needle for needle, _ in _READERS))

    def line(self, line: Line) -> Iterator[Seen]:
        for needle, read in _READERS:
            if needle in line.text:
                event = read(line)
                if event is not None:
                    yield _on_host(event, line)
                    return

    def end(self) -> Iterable[Seen]:
        return ()
