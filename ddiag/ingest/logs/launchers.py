"""Launchers beside torchrun: what DeepSpeed, accelerate, mpirun, shells, Lightning and spawn say of dead workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from signal import SIGKILL

from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.signals import number_of, of_exit_code
from ddiag.model.incident import Event, Seen, Value

_DS_KILL = re.compile(r"sigkill_handler\] Killing subprocess (?P<pid>\d+)|\bKilling subprocess (?P<bare>\d+)")
_DS_EXIT = re.compile(r"exits with return code = (?P<code>-?\d+)")
_DS_LOCAL = re.compile(r"--local[_-]rank[=' ,]+(?P<local>\d+)")
_DS_SPAWNED = re.compile(r"process (?P<pid>\d+) spawned with command: (?P<argv>.+)")
_DS_MAP = re.compile(r"global_rank_mapping=defaultdict\(<class 'list'>, \{(?P<map>.+?)\}\)")
_DS_HOST = re.compile(r"'(?P<host>[^']+)': \[(?P<ranks>[\d, ]*)\]")
_DS_NODE = re.compile(r"nnodes=(?P<nnodes>\d+), num_local_procs=(?P<local>\d+), node_rank=(?P<node>\d+)")
_CALLED = re.compile(r"(?:returned non-zero exit status (?P<code>\d+)|died with <Signals\.(?P<signal>SIG\w+)[^>]*>)")
_MPI = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited "
    r"(?:on signal (?P<signal>\d+)|.*code (?P<code>\d+))"
)
_MPI_CODE = re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]")
_MPI_EXIT = re.compile(r"Exit code: +(?P<code>\d+)")
_HYDRA = re.compile(r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)")
_HYDRA_END = re.compile(r"KILLED BY SIGNAL: (?P<signal>\d+)|EXIT (?:CODE|STATUS): (?P<code>\d+)")
_LIGHTNING = re.compile(
    r"\[rank: (?P<rank>\d+)\] Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)"
)
_SPAWN = re.compile(r"process (?P<local>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))")
_RAISED = re.compile(r"-- Process (?P<local>\d+) terminated with the following error")
_VLLM = re.compile(r"Worker \S+ pid (?P<pid>\d+) died, exit code: (?P<code>-?\d+)")
_SHELL = re.compile(r"line \d+: +(?P<pid>\d+) (?P<word>Killed|Segmentation fault|Aborted|Bus error|Terminated)\b")
_BARE = re.compile(r"^(?P<word>Killed|Bus error|Segmentation fault)(?: \(core dumped\))?\s*$")


class Launchers:
    """Which worker ended and how, in the words of whoever started it."""

    needles: tuple[str, ...] = (
        "Killing subprocess", "exits with return code", "spawned with command", "global_rank_mapping=", "node_rank=",
        "returned non-zero exit status", "died with <Signals", "with PID ", "Process name: [[", "RUNNING AT",
        "Child process with PID", "terminated with signal", "terminated with exit code",
        "terminated with the following error", "died, exit code", " Aborted", "Bus error",
        "Killed", "Segmentation fault",
    )  # fmt: skip

    def __init__(self) -> None:
        self._local_of: dict[int, int] = {}
        self._killed: set[int] = set()
        self._ranks_of: dict[str, list[int]] = {}
        self._one_node = True

    def line(self, line: Line) -> Iterator[Seen]:
        text = line.text
        self._learn(text)
        if found := _DS_KILL.search(text):
            pid = int(found["pid"] or found["bare"])
            self._killed.add(pid)
            yield Event("launcher.killing", {"pid": pid, "local_rank": self._local_of.get(pid)})
        elif found := _DS_EXIT.search(text):
            yield self._deepspeed(text, int(found["code"]), line)
        elif found := _MPI.search(text) or _LIGHTNING.search(text):
            yield _failed(found, line, int(found["rank"]))
        elif found := _VLLM.search(text):
            yield _failed(found, line, None)
        elif found := _HYDRA.search(text):
            end = next((e for later in line.following(4) if (e := _HYDRA_END.search(later.text))), None)
            yield _failed(found, line, int(found["rank"]), end)
        elif found := _MPI_CODE.search(text):
            end = next((e for later in line.following(3) if (e := _MPI_EXIT.search(later.text))), None)
            yield _failed(found, line, int(found["rank"]), end)
        elif (found := _SPAWN.search(text) or _RAISED.search(text)) or (
            found := _SHELL.search(text) or _BARE.match(text)
        ):
            yield _failed(found, line, None)
        elif found := _CALLED.search(text):
            yield _failed(found, line, None, of_launcher=True)

    def end(self) -> Iterable[Seen]:
        return ()

    def _learn(self, text: str) -> None:
        if found := _DS_SPAWNED.search(text):
            local = _DS_LOCAL.search(found["argv"])
            if local:
                self._local_of[int(found["pid"])] = int(local["local"])
        if found := _DS_MAP.search(text):
            for host in _DS_HOST.finditer(found["map"]):
                self._ranks_of[host["host"]] = [int(one) for one in re.findall(r"\d+", host["ranks"])]
        if found := _DS_NODE.search(text):
            self._one_node = int(found["nnodes"]) == 1

    def _deepspeed(self, text: str, code: int, line: Line) -> Event:
        """DeepSpeed prints the command of the process that it started last, whichever failed.

        The rank is sure where one process runs per node. After SIGKILL the last one is kept as ``last_started``, for
        want of better; of a failure with a traceback nobody can say whose it is.
        """
        local = _DS_LOCAL.search(text)
        number = int(local["local"]) if local else None
        alone = max(len(self._killed), len(self._local_of), (number or 0) + 1) == 1
        ranks = self._ranks_of.get(line.host or "", [])
        if not ranks and len(self._ranks_of) == 1:
            ranks = next(iter(self._ranks_of.values()))
        rank = ranks[number] if number is not None and number < len(ranks) else None
        signal = of_exit_code(code)
        fields: dict[str, Value] = {
            "local_rank": number if alone else None, "rank": rank if alone else None,
            "last_started": number if not alone and signal == SIGKILL else None, "last_rank": rank,
            "exitcode": code, "signal": signal, "first": True, "host": line.host, "one_node": self._one_node,
        }  # fmt: skip
        return Event("launcher.child_failed", fields, rank=rank if alone else None)


def _failed(
    found: re.Match[str], line: Line, rank: int | None, end: re.Match[str] | None = None, *, of_launcher: bool = False
) -> Event:
    said = {**found.groupdict(), **(end.groupdict() if end else {})}
    word = said.get("signal") or said.get("word")
    signal = number_of(word) if word else None
    code = -signal if signal else int(said["code"]) if said.get("code") else None
    if signal is None and code is not None:
        signal = of_exit_code(code)
    host = said.get("host") or line.host
    fields: dict[str, Value] = {
        "rank": rank, "local_rank": int(said["local"]) if said.get("local") else None, "host": host,
        "pid": int(said["pid"]) if said.get("pid") else None, "exitcode": code, "signal": signal, "first": True,
        "of_launcher": of_launcher,
    }  # fmt: skip
    return Event("launcher.child_failed", fields, rank=rank, host=host)
