"""The kernel's out-of-memory killer: its summary line (4.19 and later) and the line that names the process."""

from __future__ import annotations

import re

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event

_SUMMARY = re.compile(r"oom-kill:constraint=(\w+)")
_FIELD = re.compile(r"(\w+)=([^,\s]+)")
_KILLED = re.compile(
    r"(Memory cgroup out of memory|Out of memory)(?: \(oom_kill_allocating_task\))?: Killed process (\d+),? \(([^)]*)\)"
)
_OLD = re.compile(r"Killed process (\d+),? (?:UID \d+,? )?\(([^)]*)\)")
_RSS = re.compile(r"anon-rss:(\d+)kB")
_CONSTRAINTS = {
    "CONSTRAINT_MEMCG": "cgroup",
    "CONSTRAINT_NONE": "host",
    "CONSTRAINT_CPUSET": "cpuset",
    "CONSTRAINT_MEMORY_POLICY": "cpuset",
}


def oom_kill(line: Line) -> Event | None:
    """``kernel.oom_killer`` of either line; both may come for one kill (same pid)."""
    summary = _SUMMARY.search(line.text)
    if summary is not None:
        fields = dict(_FIELD.findall(line.text))
        return Event(
            "kernel.oom_killer",
            {
                "pid": int(fields["pid"]) if fields.get("pid", "").isdigit() else None,
                "process": fields.get("task"),
                "constraint": _CONSTRAINTS.get(summary[1], summary[1].lower()),
                "cgroup": fields.get("task_memcg") or fields.get("oom_memcg"),
                "rss_bytes": None,
            },
        )
    killed = _KILLED.search(line.text)
    if killed is not None:
        limited = "cgroup" if killed[1].startswith("Memory cgroup") else "host"
        return _killed(line, int(killed[2]), killed[3], limited)
    old = _OLD.search(line.text)
    return None if old is None else _killed(line, int(old[1]), old[2], None)


def _killed(line: Line, pid: int, process: str, constraint: str | None) -> Event:
    rss = _RSS.search(line.text)
    return Event(
        "kernel.oom_killer",
        {
            "pid": pid,
            "process": process,
            "constraint": constraint,
            "cgroup": None,
            "rss_bytes": int(rss[1]) * 1024 if rss else None,
        },
    )
