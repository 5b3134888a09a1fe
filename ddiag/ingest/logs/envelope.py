"""What launchers, schedulers and log shippers put before a program's line: taken off, and kept as hints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ddiag.ingest.logs.stamps import NONE, Stamp, stamp_of

MOST_LAYERS = 8
MOST_RANKS = 1 << 17
"""No job has as many: a larger number is a damaged line."""
ANSI = re.compile(
    rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][0-9A-B]|\x1b\][^\x07\n]{0,200}\x07|(?:\xef\xbf\xbd|\x9b)\[[0-9;]*m"
)
PASTED = re.compile(rb"(?<![\w\]])\[(?:[0-9]|[349][0-7]|10[0-7]|[1-9];[0-9;]+)m|(?<=[\w.:/)\]])\[0m")
"""Colour codes whose escape character was lost in copying: ``[36m(Worker pid=1)[0m``."""

_JSON_HEAD = '{"log":"'
_JSON = re.compile(r'\{"log":"((?:[^"\\]|\\.)*)"(?:,"[^{}]*?)?,"time":"([^"]+)"')
"""Docker's json-file driver."""
_ROLE = re.compile(r"\[rank(?P<rank>\d+)\]: ?|\[[A-Za-z_][A-Za-z_-]*?(?P<local>\d+)\]:")
"""torch puts a blank behind its own label before a traceback; behind torchrun's a blank is the program's own."""
_INSIDE = re.compile(r"\[rank(\d+)\]:(?=\s?\[[VIWEF])")
"""c10's own label, behind a progress bar without a line end."""
_MPI = re.compile(r"\[(?:[\w.@-]+[,@])?\d+,(\d+)\]<std\w+>:[ \t]?")
_RAY = re.compile(r"\((?:(?P<actor>[\w.:<>-]+) )?\(?(?:\w+ )?pid=(?P<pid>\d+)\)?(?:, ?ip=(?P<ip>[\w.:-]+))?\)[ \t]?")
_SHIPPER = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"(?: std(?:out|err) [FP])?(?=[ \t]|\[rank|$)[ \t]?"
)
_SYSLOG = re.compile(
    r"(?:<\d+>)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?P<host>[A-Za-z0-9][\w.-]*) "
    r"(?=[\w./()-]+(?:\[\d+\])?: )"
)
_POD = re.compile(r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\] ")
_COMPOSE = re.compile(r"(?P<host>[\w.-]+) +\| ")
_TASK = re.compile(r"(\d{1,6}): ")
_HOST = re.compile(r"(?P<host>[A-Za-z][\w.-]*|\d{1,3}(?:\.\d{1,3}){3}): ")
_VIEWER = re.compile(r"\[(\d+)\] ")
_STRONG = re.compile(
    r"\[(?:rank|default|worker|trainer)\d+\]:|\[[VIWEF](?:\d{3,4} | [\w./-]+:\d+\])|\[\d{4}-\d\d|[VIWEF]\d{4} \d\d:"
    r"|Traceback \(|[\w.-]+:\d+:\d+ \[\d+\] |slurmstepd:|srun: |torch\.|[A-Z]\w*(?:Error|Exception)\b: "
    r"|terminate called|\d{4}-\d\d-\d\d[ T]"
)
"""What no program but ours would print after a label, so a label before it is one."""
_WORDS = {
    *("srun", "slurmstepd", "python", "python3", "bash", "sh", "sudo", "mpirun", "orted", "prterun", "ssh", "pdsh"),
    *("kubectl", "docker", "kernel", "systemd", "nvidia-smi", "torchrun"),
    *("error", "warning", "warn", "info", "note", "debug", "fatal", "critical", "raise", "file", "exception"),
    *("traceback", "usage", "time"),
}
"""What stands before a colon and is no host."""
HEAD_LINES = 400


@dataclass(frozen=True)
class Labels:
    """Which ambiguous labels this file's lines carry, judged from its first lines."""

    tasks: bool = False
    """``118: `` is a task number of ``srun -l``."""
    tasks_are_ranks: bool = True
    """False: one task per node, so the number is no rank."""
    hosts: frozenset[str] = frozenset()
    """``worker-1: `` is a host: those seen."""
    numbers: bool = False
    """``[80746] `` is a viewer's line number."""


@dataclass(frozen=True)
class Envelope:
    text: str
    """What the program printed."""
    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    task: int | None = None
    stamp: Stamp = NONE
    """A log shipper's."""


def opened(raw: str, labels: Labels) -> Envelope:
    """*raw* without its envelope."""
    known: dict[str, int | str | None] = {}
    stamp, at = NONE, 0
    if raw.startswith(_JSON_HEAD) and (wrapped := _JSON.match(raw)):
        raw, stamp = _unescaped(wrapped[1]), stamp_of(wrapped[2])
    for _ in range(MOST_LAYERS):
        at = _past_blanks(raw, at)
        end = _layer(raw, at, labels, known)
        if end is None:
            shipper = _SHIPPER.match(raw, at)
            if shipper is None or stamp is not NONE:
                break
            end = shipper.end()
        if stamp is NONE:
            stamp = stamp_of(raw[at:end])
        at = end
    rank, local_rank, task = known.get("rank"), known.get("local_rank"), known.get("task")
    if isinstance(rank, int) and rank >= MOST_RANKS:
        rank = None
    if rank is None and "[rank" in raw and (inside := _INSIDE.search(raw, at)):
        rank = int(inside[1]) if int(inside[1]) < MOST_RANKS else None
    if rank is None and isinstance(task, int) and task < MOST_RANKS and labels.tasks_are_ranks:
        rank = task
    return Envelope(raw[at:], rank, local_rank, known.get("host"), known.get("pid"), task, stamp)  # type: ignore[arg-type]


def _unescaped(text: str) -> str:
    plain = text.replace("\\n", "").replace("\\r", "").replace("\\t", "\t").replace('\\"', '"')
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), plain).replace("\\\\", "\\")


def _past_blanks(raw: str, at: int) -> int:
    """Indentation is the program's own, unless an envelope follows it."""
    if raw[at : at + 1] not in (" ", "\t"):
        return at
    rest = raw[at:].lstrip(" \t")
    follows = any(layer.match(rest) for layer in (_ROLE, _SHIPPER, _RAY, _MPI, _TASK))
    return len(raw) - len(rest) if follows else at


def _layer(raw: str, at: int, labels: Labels, known: dict[str, int | str | None]) -> int | None:
    """Where the layer at *at* ends, its hints put into *known*; None when none is there."""
    first = raw[at : at + 1]
    if first == "[":
        return _bracket(raw, at, labels, known)
    if first == "(" and (found := _RAY.match(raw, at)):
        known["pid"] = int(found["pid"])
        if found["ip"]:
            known["host"] = found["ip"]
        return found.end()
    if first.isdigit() and (found := _TASK.match(raw, at)):
        if labels.tasks or _STRONG.match(raw, found.end()):
            known["task"] = int(found[1])
            return found.end()
        return None
    if not first.isalnum() and first != "<":
        return None
    if found := _SYSLOG.match(raw, at) or _COMPOSE.match(raw, at):
        known["host"] = found["host"]
        return found.end()
    if (found := _HOST.match(raw, at)) and _is_host(raw, found, labels):
        known["host"] = found["host"]
        return found.end()
    return None


def _bracket(raw: str, at: int, labels: Labels, known: dict[str, int | str | None]) -> int | None:
    if found := _ROLE.match(raw, at):
        key, number = ("rank", found["rank"]) if found["rank"] else ("local_rank", found["local"])
        known.setdefault(key, int(number))
        return found.end()
    if found := _MPI.match(raw, at):
        known["rank"] = int(found[1])
        return found.end()
    if found := _POD.match(raw, at):
        known["host"] = found["host"]
        return found.end()
    if (found := _VIEWER.match(raw, at)) and (labels.numbers or _STRONG.match(raw, found.end())):
        return found.end()
    return None


def _is_host(raw: str, found: re.Match[str], labels: Labels) -> bool:
    name = found["host"]
    if name.lower() in _WORDS or name.endswith(("Error", "Exception", "Warning", "Interrupt")):
        return False
    if _STRONG.match(raw, found.end()):
        return True
    return name in labels.hosts or (bool(labels.hosts) and any(c.isdigit() for c in name))


def labels_in(head: Iterable[str]) -> Labels:
    """Judge the labels of a file from its first lines."""
    lines = [line.strip() for line in head if line.strip()][:HEAD_LINES]
    if len(lines) < 2:
        return Labels()
    tasks = [found for line in lines if (found := _TASK.match(line))]
    hosts = [found["host"] for line in lines if (found := _HOST.match(line)) and found["host"].lower() not in _WORDS]
    numbers = [int(found[1]) for line in lines if (found := _VIEWER.match(line))]
    most = 0.8 * len(lines)
    return Labels(
        tasks=len(tasks) >= most,
        tasks_are_ranks=_tasks_are_ranks(lines),
        hosts=frozenset(hosts if len(hosts) >= most and len(set(hosts)) <= max(1, len(hosts) // 2) else ()),
        numbers=len(numbers) >= most and len(numbers) > 2 and numbers == sorted(set(numbers)),
    )


def _tasks_are_ranks(lines: Iterable[str]) -> bool:
    """A task number is the rank unless torchrun runs below the tasks, or lines say another rank than their label."""
    for line in lines:
        label = _TASK.match(line)
        if label is None:
            continue
        if "torch/distributed/elastic" in line or "torch.distributed.elastic" in line or "[default" in line:
            return False
        inner = re.search(r"\[rank(\d+)\]:", line)
        if inner and int(inner[1]) != int(label[1]):
            return False
    return True


def without_colours(chunk: bytes) -> bytes:
    """*chunk* without terminal codes, also those whose escape character was lost in copying."""
    if b"\x1b" in chunk or (not chunk.isascii() and (b"\xef\xbf\xbd[" in chunk or b"\x9b" in chunk)):
        chunk = ANSI.sub(b"", chunk)
    if b"[0m" in chunk:
        chunk = PASTED.sub(b"", chunk)
    return chunk
