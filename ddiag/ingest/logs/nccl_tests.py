"""Output of nccl-tests (all_reduce_perf …), old and new column layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.bus_ids import bus_id
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen

_TYPE = r"(?:float|half|bfloat16|u?int(?:8|32|64)|double|f(?:p|loat)8\w*|f8\w*)"
_HALF = r"([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)"
_ROW = re.compile(rf"^\s*(\d+)\s+(\d+)\s+{_TYPE}(?:\s+[a-z]+)?(?:\s+-?\d+)?\s+{_HALF}(?:\s+{_HALF})?\s*$")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\d+(?:\.\d+)?)")
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+) device\s+(\d+) \[(?:0x)?([0-9a-fA-F:.]+)\] (.*?)\s*$"
)
_TEST = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf\b"
)


class NcclTests:
    """``nccl_tests.row`` (out of place and in place apart), ``nccl_tests.average`` and ``nccl_tests.device``."""

    needles: tuple[str, ...] = (
        "Avg bus bandwidth",
        "_perf",
        " Pid ",
        "float  ",
        "half  ",
        "bfloat16  ",
        "int8  ",
        "int32  ",
        "int64  ",
        "double  ",
        "float8_e",
        "fp8_e",
    )

    def __init__(self) -> None:
        self._test: str | None = None
        self._ranks = 0

    def line(self, line: Line) -> Iterator[Seen]:
        named = _TEST.search(line.text)
        if named is not None:
            self._test = named[1]
        if (average := _AVERAGE.search(line.text)) is not None:
            fields = {"busbw_gbps": float(average[1]), "test": self._test, "nranks": self._ranks or None}
            yield Event("nccl_tests.average", fields)
        elif (device := _DEVICE.search(line.text)) is not None:
            self._ranks = max(self._ranks, int(device[1]) + 1)
            yield _device(device)
        elif (row := _ROW.search(line.text)) is not None:
            for place, cells in enumerate((row.group(3, 4, 5, 6), row.group(7, 8, 9, 10))):
                if cells[0] is not None:
                    yield self._row(int(row[1][:18]), cells, in_place=place == 1)

    def end(self) -> Iterable[Seen]:
        return ()

    def _row(self, size_bytes: int, cells: tuple[str, ...], *, in_place: bool) -> Event:
        time_us, algbw, busbw, wrong = cells
        fields = {
            "bytes": size_bytes,
            "time_us": _float(time_us),
            "algbw_gbps": _float(algbw),
            "busbw_gbps": _float(busbw),
            "wrong": int(wrong) if wrong.isdigit() else None,
            "test": self._test,
            "in_place": in_place,
        }
        return Event("nccl_tests.row", fields)


def _device(match: re.Match[str]) -> Event:
    rank, host, index, address, name = match.groups()
    whole = address if ":" in address else f"{address}:00.0"  # up to 2.13 it prints the bus number alone
    fields = {"rank": int(rank), "host": host, "device": int(index), "name": name, "bus_id": bus_id(whole)}
    return Event("nccl_tests.device", fields, rank=int(rank), host=host)


def _float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(?:\.\d*)?", text) else None


def _bus(text: str) -> str | None:
    """``0000:87:00``, or ``87`` alone: the number of the bus."""
    return bus_id(f"{int(text, 16):02x}:00" if len(text) <= 2 else text)
