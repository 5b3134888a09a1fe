"""CPU, memory, pressure, disks and networks of the host, as in a line of ``nodes/<host>.samples``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ddiag.supervise.cgroup import CgroupCounters
from ddiag.supervise.proc import PAGE, TICK_NS, field, number, read_text

_SECTOR_BYTES = 512
_IB_WORD_BYTES = 4
_IB = Path("/sys/class/infiniband")
IB_ERRORS = (
    *(("counters", "port_xmit_discards"), ("hw_counters", "out_of_sequence"), ("hw_counters", "packet_seq_err")),
    *(("hw_counters", "local_ack_timeout_err"), ("hw_counters", "rnr_nak_retry_err"), ("hw_counters", "np_cnp_sent")),
)
"""What a port drops, repeats or is asked to slow down for: folder and name below the port's."""
_WHOLE_DISK = re.compile(r"(nvme\d+n\d+|[shv]d[a-z]+|xvd[a-z]+|md\d+|dm-\d+)$")


class HostCounters:
    """What is read once a second; where to read is found out once."""

    def __init__(self) -> None:
        self._cgroup = CgroupCounters()
        self._pressure = [name for name in ("cpu", "memory", "io") if Path("/proc/pressure", name).exists()]
        self._ports = sorted(_IB.glob("*/ports/*"))

    def read(self) -> dict[str, Any]:
        found = {
            "cpu": _cpu(),
            "pressure": self._stalls(),
            "memory": _memory(),
            "cgroup": self._cgroup.read(),
            "disks": _disks(),
            "net": _net(),
            "ib": {f"{port.parts[-3]}/{port.name}": _ib(port) for port in self._ports},
        }
        return {name: value for name, value in found.items() if value}

    def _stalls(self) -> dict[str, int]:
        found = {}
        for name in self._pressure:
            for line in read_text(f"/proc/pressure/{name}").splitlines():
                how, _, rest = line.partition(" ")
                if not (name == "cpu" and how == "full"):
                    found[f"{name}_{how}_us"] = int(rest.rpartition("total=")[2])
        return found

    def port_facts(self) -> dict[str, dict[str, str]]:
        """Rate and state of the InfiniBand and RoCE ports."""
        return {
            f"{port.parts[-3]}/{port.name}": {
                name: read_text(port / name).strip() for name in ("rate", "state", "link_layer")
            }
            for port in self._ports
        }


def _cpu() -> dict[str, Any]:
    stat = read_text("/proc/stat")
    if not stat.startswith("cpu "):
        return {}
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return {
        "busy_ns": (user + nice + system + irq + softirq) * TICK_NS,
        "idle_ns": idle * TICK_NS,
        "iowait_ns": iowait * TICK_NS,
        "steal_ns": steal * TICK_NS,
        "switches": field(stat, "ctxt"),
        "running": field(stat, "procs_running"),
        "blocked": field(stat, "procs_blocked"),
        "load1": float(read_text("/proc/loadavg").split()[0]),
    }


def _memory() -> dict[str, int]:
    meminfo, vmstat = read_text("/proc/meminfo"), read_text("/proc/vmstat")
    total, free = field(meminfo, "SwapTotal"), field(meminfo, "SwapFree")
    found = {
        "total_bytes": _kib(field(meminfo, "MemTotal")),
        "available_bytes": _kib(field(meminfo, "MemAvailable")),
        "swap_used_bytes": _kib(total - free) if total is not None and free is not None else None,
        "shm_used_bytes": _kib(field(meminfo, "Shmem")),
        "oom_kills": field(vmstat, "oom_kill"),
        "major_faults": field(vmstat, "pgmajfault"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _kib(value: int | None) -> int | None:
    return None if value is None else value * 1024


def _disks() -> dict[str, list[int]]:
    found = {}
    for line in read_text("/proc/diskstats").splitlines():
        words = line.split()
        if len(words) >= 13 and _WHOLE_DISK.match(words[2]):
            found[words[2]] = [int(words[5]) * _SECTOR_BYTES, int(words[9]) * _SECTOR_BYTES, int(words[12])]
    return found


def _net() -> dict[str, list[int]]:
    found = {}
    for line in read_text("/proc/net/dev").splitlines()[2:]:
        name, _, values = line.partition(":")
        numbers = [int(word) for word in values.split()]
        if len(numbers) >= 16 and (numbers[0] or numbers[8]):
            found[name.strip()] = [numbers[0], numbers[8], numbers[2] + numbers[10], numbers[3] + numbers[11]]
    return found


def _ib(port: Path) -> list[int]:
    def read(name: str, folder: str = "counters") -> int:
        return number(port / folder / name) or 0

    errors = read("symbol_error") + read("port_rcv_errors") + read("link_downed")
    data = (read("port_rcv_data") * _IB_WORD_BYTES, read("port_xmit_data") * _IB_WORD_BYTES)
    return [*data, errors, read("port_xmit_wait"), *(read(name, folder) for folder, name in IB_ERRORS)]


def resident_bytes(statm: str) -> int:
    """From the content of /proc/PID/statm."""
    words = statm.split()
    return int(words[1]) * PAGE if len(words) > 1 else 0
