"""What Slurm (slurmstepd, srun, sacct), Kubernetes and Ray print when they end a job."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen, Value

_CANCELLED = re.compile(
    r"(?:slurmstepd|srun)\S*: (?:error: )?\*\*\* (?P<what>JOB|STEP) (?P<job>\d+)(?:\.(?P<step>\S+))? ON (?P<node>\S+) "
    r"(?:CANCELLED|FAILED) AT (?P<at>\S+?)(?: DUE TO (?P<reason>[A-Z ,]+?))? \*\*\*"
)
_REASONS = (
    ("TIME LIMIT", "time_limit"), ("PREEMPT", "preemption"), ("NODE FAIL", "node_failure"),
    ("NODE FAILURE", "node_failure"),
)  # fmt: skip
_OOM = re.compile(
    r"Detected (?P<count>\d+) oom[-_ ]kill (?:event\(s\)|events?) in (?:StepId=)?(?P<job>\d+)\.?(?P<step>[\w+]+)?|"
    r"(?P<node>\S+): task (?P<task>\d+): Out Of Memory|Exceeded (?:job|step) memory limit"
)
_NODE = re.compile(
    r"Node failure on (?P<a>\S+)|task launch for .* failed on node (?P<b>\S+):|error: (?P<c>\S+): tasks? .*: Node "
    r"failure|"
    r"NODE_FAIL"
)
_EXIT = re.compile(
    r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,\-\[\]]+): (?:Exited with exit code "
    r"(?P<code>\d+)|(?P<signal>[A-Z][a-z]+(?: [a-z]+)*)"
    r"(?: \(core dumped\))?)"
)
_SIGNALS = {
    "Killed": 9, "Terminated": 15, "Aborted": 6, "Segmentation fault": 11, "Bus error": 7,
    "Floating point exception": 8, "User defined signal": 10, "Interrupt": 2, "Hangup": 1, "Illegal instruction": 4,
}  # fmt: skip
_LIMIT = re.compile(r"Job (?P<job>\d+) reached .*time limit|JobId=(?P<other>\d+) .*TIMEOUT")
_STATE = re.compile(
    r"^\s*(?P<job>\d+)(?:\.\S+)?\s+.*\b(?P<state>PREEMPTED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|OUT_OF_ME\+)(?=\s|$)"
)
_POD = re.compile(r"\b(?:Reason|reason)\"?:\s*\"?(?P<reason>OOMKilled|Evicted|Preempted|Preempting|DeadlineExceeded)\b")
_POD_LINE = re.compile(r"^\s*(?P<pod>[\w.-]+)\s+\d+/\d+\s+(?P<reason>OOMKilled|Evicted|Preempting)\b")
_RAY = re.compile(
    r"Workers \(tasks / actors\) killed due to memory pressure \(OOM\)|"
    r"Memory on the node \(IP: (?P<ip>[^,)]+).*?pid=(?P<pid>\d+)"
)
_RAY_NODE = re.compile(r"\(ID: \w+, IP: ([^\s)]+)\)")
_MOST_TASKS = 4096


class Slurm:
    """The scheduler's own words."""

    needles: tuple[str, ...] = (
        "CANCELLED AT", "FAILED AT", "oom", "Out Of Memory", "memory limit", "Node failure", "NODE_FAIL",
        "srun: error", "PREEMPTED", "TIMEOUT", "OUT_OF_ME", "time limit", "OOMKilled", "Evicted", "Preempt",
        "DeadlineExceeded", "launch for", "memory pressure (OOM)", "Memory on the node",
    )  # fmt: skip

    def line(self, line: Line) -> Iterator[Seen]:
        text = line.text
        if found := _CANCELLED.search(text):
            yield _cancelled(found)
        elif found := _OOM.search(text):
            yield _with_known("slurm.oom_kill", found, line, ("job", "step", "count", "node", "task"))
        elif found := _EXIT.search(text):
            yield from _task_exit(found)
        elif found := _NODE.search(text):
            node = next((value for value in found.groups() if value), "")
            yield Event("slurm.node_fail", {"node": node}, host=node or None)
        elif found := _LIMIT.search(text):
            yield Event("slurm.time_limit", {"job": found["job"] or found["other"]})
        elif found := _STATE.search(text):
            yield from _accounted(found)
        elif found := _RAY.search(text):
            yield _ray(found, text, line)
        if found := _POD.search(text) or _POD_LINE.search(text):
            yield Event("k8s.pod_ended", {name: value for name, value in found.groupdict().items() if value})

    def end(self) -> Iterator[Seen]:
        return iter(())


def _ray(found: re.Match[str], text: str, line: Line) -> Event:
    """Ray names the node by its address, and the process by its number."""
    node = _RAY_NODE.search(text)
    address = found["ip"] or (node[1] if node else None) or line.host
    fields: dict[str, Value] = {"address": address, "pid": int(found["pid"]) if found["pid"] else None}
    return Event("ray.oom_kill", fields, host=address)


def _cancelled(found: re.Match[str]) -> Event:
    said = found["reason"] or ""
    reason = next((word for text, word in _REASONS if text in said), "other" if said else "user")
    fields: dict[str, Value] = {
        "job": found["job"], "step": found["step"] or "", "reason": reason, "node": found["node"], "at": found["at"]
    }  # fmt: skip
    return Event("slurm.cancelled", fields, host=found["node"])


def _with_known(kind: str, found: re.Match[str], line: Line, names: tuple[str, ...]) -> Event:
    fields: dict[str, Value] = {name: found[name] for name in names if found[name]}
    if found["task"] and found["node"]:
        return Event(kind, fields, host=found["node"], rank=int(found["task"]))
    return Event(kind, fields, host=line.host)


def _task_exit(found: re.Match[str]) -> Iterator[Event]:
    signal = next((number for word, number in _SIGNALS.items() if (found["signal"] or "").startswith(word)), None)
    tasks = _numbers(found["tasks"])
    if found["signal"] and signal is None:
        if found["signal"] == "Out":
            yield Event("slurm.oom_kill", {"node": found["node"]}, host=found["node"], rank=_one(tasks))
        return
    fields: dict[str, Value] = {"node": found["node"], "tasks": list(tasks)}
    fields |= {"signal": signal} if signal is not None else {"exitcode": int(found["code"] or 0)}
    yield Event("slurm.task_exit", fields, host=found["node"], rank=_one(tasks))


def _one(tasks: list[int]) -> int | None:
    return tasks[0] if len(tasks) == 1 else None


def _accounted(found: re.Match[str]) -> Iterator[Event]:
    """A row of ``sacct``."""
    job, state = found["job"], found["state"]
    if state in ("PREEMPTED", "TIMEOUT"):
        reason = "preemption" if state == "PREEMPTED" else "time_limit"
        yield Event("slurm.cancelled", {"job": job, "reason": reason})
    elif state == "NODE_FAIL":
        yield Event("slurm.node_fail", {"job": job})
    else:
        yield Event("slurm.oom_kill", {"job": job})


def _numbers(text: str) -> list[int]:
    """``3``, ``0,2``, ``[0-3,7]`` as numbers."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), min(int(last or first), int(first) + _MOST_TASKS) + 1)
    return found
