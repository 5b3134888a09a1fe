"""What small tools say of a host: ulimit, df, lsmod, systemctl, sysctl, uname, free, ps, taskset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.facts import fact, number, size_bytes
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, NodeFact, Seen

_ULIMIT = re.compile(
    r"^\s*(max locked memory|open files|max user processes)\s+\((?:(kbytes|bytes), )?-(\w)\)\s+(\S+)\s*$"
)
_PROC_LIMIT = re.compile(r"^\s*Max (locked memory|open files|processes)\s+(\S+)\s+(\S+)\s")
_MEMLOCK_LINE = re.compile(r"(?:ulimit -l|RLIMIT_MEMLOCK|memlock)\D{0,12}?[:=]\s*(unlimited|-1|\d+)\b")
_LIMIT_KEYS = {
    "max locked memory": "limit.memlock_bytes",
    "locked memory": "limit.memlock_bytes",
    "open files": "limit.open_files",
    "max user processes": "limit.processes",
    "processes": "limit.processes",
}
_DF = re.compile(r"^\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\d+)%\s+(/\S*)\s*$")
_DF_HEADER = re.compile(r"Filesystem.*(1K-blocks|1024-blocks|1M-blocks)")
_LSMOD_HEADER = re.compile(r"^\s*Module\s+Size\s+Used by")
_MODULE = re.compile(
    r"^\s*(nvidia_peermem|nv_peer_mem|ib_peer_mem|nvidia|nvidia_uvm|gdrdrv|mlx5_ib|mlx5_core|ib_uverbs)\s+\d+\s+\d+"
)
_UNIT = re.compile(r"([\w@.-]+)\.service - ")
_ACTIVE = re.compile(r"^\s*Active: (\w+)")
_FM_VERSION = re.compile(r"[Ff]abric ?[Mm]anager(?: version)?(?: is)?\s*:?\s*(\d+\.\d+[\d.]*)")
_SYSCTL = re.compile(r"^\s*((?:net|kernel|vm|fs)\.[\w.]+) ?= ?(\S.*?)\s*$")
_UNAME = re.compile(r"\bLinux (\S+) (\d+\.\d+[\w.+-]*)")
_FREE = re.compile(r"^\s*Mem:\s+(\S+)\s+(\S+)\s+(\S+)(?:\s+\S+\s+\S+\s+(\S+))?\s*$")
_MEMINFO = re.compile(r"^\s*(MemTotal|MemAvailable):\s+(\d+) kB")
_PS = re.compile(r"^\s*(\d+)\s+([DZRTSIt][<NLsl+]*)\s+(\S+)\s+(\S.*)$")
_PS_HEADER = re.compile(r"^\s*PID\s+STAT?\s+WCHAN")
_TASKSET = re.compile(r"pid (\d+)(?:'s)? current affinity (?:list|mask): (\S+)")
_STORAGE = re.compile(r"rpc_|nfs|uvm_|nvidia|os_acquire|ceph|fuse|lustre|ptlrpc|cl_sync|gpfs|cifs")
"""Where a process waits for a file server or the GPU driver; short waits for a local disk are ordinary."""
MOST_ROWS = 4000


class HostTools:
    """Limits, file systems, modules, services, kernel parameters, memory and processes of a host."""

    needles: tuple[str, ...] = (
        "max locked memory",
        "open files",
        "max user processes",
        "locked memory",
        "memlock",
        "ulimit -l",
        "MEMLOCK",
        "/dev/shm",
        "% /",
        "Used by",
        "nvidia_peermem",
        "nv_peer_mem",
        ".service - ",
        "Active:",
        "abric manager",
        "abric Manager",
        "abricmanager",
        "net.core.",
        "net.ipv4.",
        "vm.overcommit",
        "fs.file-max",
        " SMP ",
        "Mem:",
        "MemTotal",
        "MemAvailable",
        "WCHAN",
        "current affinity",
        "nvidia  ",
        "mlx5_ib",
        "ib_uverbs",
        "gdrdrv",
    )

    def __init__(self) -> None:
        self._service: str | None = None
        self._block_bytes = 1024.0

    def line(self, line: Line) -> Iterator[Seen]:
        for read in (self._limit, self._file_system, self._service_state, _kernel, _memory):
            found = list(read(line.text))
            if found:
                yield from found
                return
        if _LSMOD_HEADER.search(line.text):
            yield NodeFact("kernel.modules_listed", "lsmod", 1.0)
        elif (module := _MODULE.search(line.text)) is not None:
            yield NodeFact("kernel.module", module[1])
        elif _PS_HEADER.search(line.text):
            yield from _processes(line)
        elif (affinity := _TASKSET.search(line.text)) is not None:
            yield NodeFact("process.affinity", affinity[2], float(affinity[1][:9]))

    def end(self) -> Iterable[Seen]:
        return ()

    @staticmethod
    def _limit(text: str) -> Iterator[NodeFact]:
        if (match := _ULIMIT.search(text)) is not None:
            yield _limit(_LIMIT_KEYS[match[1]], match[4], 1024 if match[2] == "kbytes" else 1)
        elif (match := _PROC_LIMIT.search(text)) is not None:
            yield _limit(_LIMIT_KEYS[match[1]], match[2], 1)
        elif (match := _MEMLOCK_LINE.search(text)) is not None:
            yield _limit("limit.memlock_bytes", match[1], 1024)

    def _file_system(self, text: str) -> Iterator[NodeFact]:
        if (header := _DF_HEADER.search(text)) is not None:
            self._block_bytes = float(1 << 20 if header[1] == "1M-blocks" else 1 << 10)
        match = _DF.search(text)
        if match is None:
            return
        place = match[6]
        if place == "/dev/shm":
            for key, cell in (("shm.size_bytes", match[2]), ("shm.used_bytes", match[3])):
                size = size_bytes(cell)
                if size is not None:
                    yield NodeFact(key, cell, size * (self._block_bytes if cell.isdigit() else 1.0))
        yield NodeFact("disk.used_pct", f"{match[5]}%", float(match[5]), device=place)

    def _service_state(self, text: str) -> Iterator[Seen]:
        if (unit := _UNIT.search(text)) is not None:
            self._service = unit[1]
        elif (active := _ACTIVE.search(text)) is not None and self._service is not None:
            yield NodeFact("service.state", f"{self._service} {active[1]}")
            yield Event("node.service", {"service": self._service, "state": active[1]})
        elif (version := _FM_VERSION.search(text)) is not None:
            yield NodeFact("service.version", f"nvidia-fabricmanager {version[1]}")


def _limit(key: str, text: str, unit: int) -> NodeFact:
    """Unlimited has no number."""
    amount = None if text in ("unlimited", "-1") else number(text)
    return NodeFact(key, text, None if amount is None else amount * unit)


def _kernel(text: str) -> Iterator[NodeFact]:
    if (setting := _SYSCTL.search(text)) is not None:
        yield fact("kernel.sysctl", f"{setting[1]}={setting[2]}")
        if setting[1] == "net.core.somaxconn":
            yield fact("kernel.somaxconn", setting[2])
    elif (release := _UNAME.search(text)) is not None and "#" in text and release[1] != "version":
        yield NodeFact("kernel.release", release[2], host=release[1])


def _memory(text: str) -> Iterator[NodeFact]:
    if (free := _FREE.search(text)) is not None:
        for key, cell in (("memory.total_bytes", free[1]), ("memory.available_bytes", free[4])):
            size = size_bytes(cell) if cell and not cell.isdigit() else None
            if size is not None:
                yield NodeFact(key, cell, size)
    elif (info := _MEMINFO.search(text)) is not None:
        key = "memory.total_bytes" if info[1] == "MemTotal" else "memory.available_bytes"
        yield NodeFact(key, f"{info[2]} kB", float(info[2][:18]) * 1024)


def _processes(line: Line) -> Iterator[Seen]:
    """Rows of ``ps -eo pid,stat,wchan,cmd``: only those that cannot be woken, are stopped or dead."""
    for after in line.following(MOST_ROWS):
        match = _PS.search(after.text)
        if match is None:
            return
        if match[2][0] in "DZTt":
            yield NodeFact("process.state", f"{match[1]} {match[2]} {match[3]} {match[4]}", float(match[1][:9]))
        if match[2][0] == "D" and _STORAGE.search(match[3]):
            yield Event("process.uninterruptible", {"pid": int(match[1][:9]), "wchan": match[3], "command": match[4]})
