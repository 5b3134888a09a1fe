"""The control group this process lives in: its limits and how often they bite (versions 1 and 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddiag.supervise.proc import field, number, read_text

ROOT = Path("/sys/fs/cgroup")
_USED = ("memory.current", "memory.usage_in_bytes")
_NO_LIMIT = 1 << 60
"""Version 1 says "no limit" as a number near 2**63."""


def _folders(controller: str) -> list[Path]:
    """Where *controller*'s files of our group may lie, the most specific first.

    Inside a container the path in /proc/self/cgroup is often the host's, and the group is mounted at the root.
    """
    found = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        below = path.lstrip("/")
        if not controllers:
            found += [ROOT / below, ROOT, ROOT / "unified" / below]
        elif controller in controllers.split(","):
            found += [ROOT / controller / below, ROOT / controller, ROOT / controllers / below]
    return found


def _first(controller: str, name: str) -> str:
    for folder in _folders(controller):
        text = read_text(folder / name)
        if text:
            return text
    return ""


def _path(controller: str, name: str) -> Path | None:
    return next((folder / name for folder in _folders(controller) if (folder / name).is_file()), None)


def cgroup_limits() -> dict[str, Any]:
    """CPUs, memory and allowed CPUs; what is not limited (or cannot be read) is absent."""
    limits = {
        "cpus": _cpu_quota(),
        "memory_bytes": _limit(_first("memory", "memory.max") or _first("memory", "memory.limit_in_bytes")),
        "pids": _limit(_first("pids", "pids.max")),
        "cpuset": (_first("cpuset", "cpuset.cpus.effective") or _first("cpuset", "cpuset.effective_cpus")).strip()
        or None,
    }
    return {name: value for name, value in limits.items() if value is not None}


def _cpu_quota() -> float | None:
    quota, _, period = _first("cpu", "cpu.max").strip().partition(" ")
    if not period:
        quota = _first("cpu", "cpu.cfs_quota_us").strip()
        period = _first("cpu", "cpu.cfs_period_us").strip()
    if not (quota.isdigit() and period.isdigit()):
        return None
    return int(quota) / int(period)


def _limit(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def _memory_folder() -> Path | None:
    """Where the tightest limit of memory is that holds for our group: its own, or that of a group around it."""
    limits: dict[int, Path] = {}
    for folder in _folders("memory"):
        for group in (folder, *folder.parents):
            limit = _limit(read_text(group / "memory.max") or read_text(group / "memory.limit_in_bytes"))
            if limit is not None:
                limits.setdefault(limit, group)
            if group == ROOT:
                break
    return limits[min(limits)] if limits else None


def _given_back(stat: str) -> int | None:
    """File cache and kernel objects that are freed when memory is short; of version 1 with the groups below."""
    prefix = "total_" if field(stat, "total_inactive_file") is not None else ""
    parts = [field(stat, f"{prefix}{name}") for name in ("inactive_file", "active_file", "slab_reclaimable")]
    return None if parts[0] is None else sum(part or 0 for part in parts)


class CgroupCounters:
    """Throttling and memory of our group; the files are looked for once."""

    def __init__(self) -> None:
        self._cpu = _path("cpu", "cpu.stat")
        self._limited = _memory_folder()
        used = (
            None
            if self._limited is None
            else [self._limited / name for name in _USED if (self._limited / name).exists()]
        )
        self._memory = used[0] if used else _path("memory", _USED[0]) or _path("memory", _USED[1])
        self._events = _path("memory", "memory.events") or _path("memory", "memory.oom_control")

    def read(self) -> dict[str, int]:
        """As the ``cgroup`` of a sample."""
        found: dict[str, int | None] = {}
        if self._cpu is not None:
            stat = read_text(self._cpu)
            found["throttled"] = field(stat, "nr_throttled")
            found["throttled_us"] = field(stat, "throttled_usec")
            if found["throttled_us"] is None:
                nanoseconds = field(stat, "throttled_time")
                found["throttled_us"] = None if nanoseconds is None else nanoseconds // 1000
        if self._memory is not None:
            found["memory_bytes"] = number(self._memory)
        if self._limited is not None:
            found["memory_limit_bytes"] = _limit(
                read_text(self._limited / "memory.max") or read_text(self._limited / "memory.limit_in_bytes")
            )
            found["memory_cached_bytes"] = _given_back(read_text(self._limited / "memory.stat"))
        if self._events is not None:
            found["oom_kills"] = field(read_text(self._events), "oom_kill")
        return {name: value for name, value in found.items() if value is not None}
