"""Output of nccl-tests (all_reduce_perf …): one row for each size; and the last line with the average."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Metric, NodeFact, Seen

_ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(float|half|bfloat16|int8|uint8|int32|uint32|int64|uint64|double|fp8\w*|"
    r"f8\w*)\s+(\w+)\s+(-?\d+)\s+"
    r"([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)"
)
_OLD_ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(float|half|bfloat16|int8|uint8|int32|uint32|int64|uint64|double)\s+"
    r"([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)"
)
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.]+)")
_TEST = re.compile(
    r"(?:nccl-tests|#).*?\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|scatter|"
    r"hypercube)_perf|"
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast)_perf\b"
)


class NcclTests:
    """``nccl_tests.busbw_gbs`` and ``nccl_tests.time_us`` with the size in bytes as step; wrong results are counted."""

    needles = ("float", "half", "bfloat16", "int8", "double", "Avg bus bandwidth", "_perf")

    def __init__(self) -> None:
        self._test = ""

    def line(self, line: Line) -> Iterator[Seen]:
        named = _TEST.search(line.text)
        if named is not None:
            self._test = named[1] or named[2]
        average = _AVERAGE.search(line.text)
        if average is not None:
            yield Metric("nccl_tests.avg_busbw_gbs", float(average[1]))
            yield NodeFact("bandwidth.busbw_gbs", self._test or "unknown", float(average[1]))
            return
        row = _ROW.search(line.text)
        if row is not None:
            yield from _row(int(row[1][:18]), row[6], row[8], row[9])
        elif (old := _OLD_ROW.search(line.text)) is not None:
            yield from _row(int(old[1][:18]), old[4], old[6], old[7])

    def end(self) -> Iterable[Seen]:
        return ()


def _row(size_bytes: int, time_us: str, busbw_gbs: str, wrong: str) -> Iterator[Metric]:
    for name, text in (("time_us", time_us), ("busbw_gbs", busbw_gbs), ("wrong", wrong)):
        if re.fullmatch(r"\d+(?:\.\d+)?", text):
            yield Metric(f"nccl_tests.{name}", float(text), step=size_bytes)
