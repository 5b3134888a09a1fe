"""The SQLite export of Nsight Systems (``nsys export --type sqlite``) as rows, whatever its version holds.

Tables are created only when there is something in them, and columns come and go between versions; times are ns from the
start of the session; ``globalPid`` and ``globalTid`` carry the process id in bits 24-47 and the thread id below.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PID_SHIFT, PID_MASK = 24, 0xFFFFFF
ROWS = 50_000
KERNELS, COPIES, SETS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS, RANGES = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "HtoD", 12: "DtoH"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
PUSH_POP, START_END = 59, 60
Row = tuple[object, ...]


def pid_of(number: object) -> int:
    """The process in a ``globalPid`` or ``globalTid``; 0 where there is none."""
    return (number >> PID_SHIFT) & PID_MASK if isinstance(number, int) else 0


def tid_of(number: object) -> int:
    return number & PID_MASK if isinstance(number, int) else 0


@dataclass
class Export:
    """An open export; what cannot be read is left out and said in ``notes``."""

    connection: sqlite3.Connection
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = {str(row[0]) for row in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self.texts: dict[object, object] = {row[0]: row[1] for row in self.rows("StringIds", ("id", "value"))}

    def query(self, sql: str) -> Iterator[Row]:
        """Rows as far as the file goes."""
        try:
            cursor = self.connection.execute(sql)
            while rows := cursor.fetchmany(ROWS):
                yield from rows
        except sqlite3.Error as error:
            self.notes.append(f"damaged at {sql.rsplit(' FROM ', maxsplit=1)[-1].split(maxsplit=1)[0]}: {error}")

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """The named columns of *table*; NULL for a column this version does not have."""
        if table not in self.tables:
            return iter(())
        present = {str(row[1]) for row in self.query(f"PRAGMA table_info({table})")}
        chosen = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        return self.query(f"SELECT {chosen} FROM {table}")

    def text(self, code: object, otherwise: object = "") -> str:
        found = self.texts.get(code, otherwise)
        return "" if found is None else str(found)

    def epoch_ns(self) -> int | None:
        """Unix time at which the session began."""
        found = next(self.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)), (None,))[0]
        return found if isinstance(found, int) and found > 0 else None

    def host(self) -> str | None:
        names = {str(name): value for name, value in self.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))}
        found = names.get("Hostname") or names.get("HostName")
        return str(found) if found else None

    def devices(self) -> dict[int, tuple[str | None, int | None]]:
        """(name, memory in bytes) by index."""
        return {
            number: (str(name) if name else None, memory if isinstance(memory, int) else None)
            for number, name, memory in self.rows("TARGET_INFO_GPU", ("id", "name", "totalMemory"))
            if isinstance(number, int)
        }

    def ranks(self) -> dict[int, int]:
        """pid -> MPI rank, where the job was started by mpirun."""
        return {
            pid_of(process): rank
            for rank, process in self.rows("MPI_RANKS", ("rank", "globalPid"))
            if isinstance(rank, int)
        }


def copy_name(kind: object, source: object, target: object) -> str:
    """As Kineto writes it: ``Memcpy HtoD (Pinned -> Device)``."""
    direction = _COPY_KINDS.get(kind, "") if isinstance(kind, int) else ""
    if not direction and isinstance(source, int) and isinstance(target, int):
        direction = f"{'H' if source < 2 else 'D'}to{'H' if target < 2 else 'D'}"
    ends = [_MEMORY.get(side, "Unknown") if isinstance(side, int) else "Unknown" for side in (source, target)]
    return f"Memcpy {direction or 'unknown'} ({ends[0]} -> {ends[1]})"


_VERSION = re.compile(r"_v\d+$|_ptsz$")
_STEP = re.compile(r"^\s*(?:train[ _]?)?(?:step|iteration|iter|global_step|batch)[ _#:=]*(\d+)\s*$", re.IGNORECASE)
_OPERATOR = re.compile(r"^((?:aten|autograd|c10d|prims|torch_\w+)::\S+?)(?:, (?:seq|op_id|sizes)\b.*)?$")


def call_name(name: str) -> str:
    """``cudaLaunchKernel`` of ``cudaLaunchKernel_v7000``."""
    return _VERSION.sub("", name)


def range_name(name: str) -> tuple[str, str]:
    """(category, name) of an NVTX range: operators of emit_nvtx, steps under the profiler's name, all else as it is."""
    if found := _STEP.match(name):
        return "user_annotation", f"ProfilerStep#{found[1]}"
    if found := _OPERATOR.match(name):
        return "cpu_op", found[1]
    return "user_annotation", name
