"""Small runs written as a story: ``RunBuilder().step(1, 0, 100).launch_kernel("gemm", 5, 6, 50).build()``.

Times are milliseconds from the start of the capture, so that a test reads like a timeline; the tables hold nanoseconds
on the Unix epoch, as real evidence does.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

from ddiag.model.run import Coverage, Run
from ddiag.model.tables import TABLES

EPOCH_NS = 1_700_000_000_000_000_000
"""Nanosecond 0 of every built run: large enough that a float64 detour would lose precision and be noticed."""
MAIN_TID = 1
LOADERS = {
    0: "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    1: "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
}


def ns(ms: float) -> int:
    """Absolute nanosecond of *ms* after the start of the capture."""
    return EPOCH_NS + round(ms * 1e6)


class RunBuilder:
    """Collects rows; every method returns the builder. ``rank(n)`` says whose rows follow (0 at first)."""

    def __init__(self, *, device_kind: str = "cuda", world_size: int | None = None, with_stack: bool = False) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._device_kind = device_kind
        self._world_size = world_size
        self._with_stack = with_stack
        self._rank = 0
        self._ranks: list[int] = []
        self._seq: dict[tuple[int, str], int] = defaultdict(int)
        self._correlation = 0
        self._captures: list[tuple[int, float, float]] = []

    def rank(self, rank: int) -> RunBuilder:
        self._rank = rank
        return self

    def capture(self, start_ms: float, dur_ms: float) -> RunBuilder:
        """State a capture of the current rank; without it the capture spans everything recorded."""
        self._captures.append((self._rank, start_ms, start_ms + dur_ms))
        return self

    def step(self, number: int, start_ms: float, dur_ms: float) -> RunBuilder:
        self.op(f"ProfilerStep#{number}", start_ms, dur_ms, kind="annotation")
        return self._add("steps", step=number, start_ns=ns(start_ms), end_ns=ns(start_ms + dur_ms))

    def op(
        self,
        name: str,
        start_ms: float,
        dur_ms: float,
        *,
        kind: str = "op",
        tid: int = MAIN_TID,
        external_id: int = -1,
        sequence: int = -1,
        fwd_tid: int = -1,
        dims: str | None = None,
        dtypes: str | None = None,
    ) -> RunBuilder:
        return self._add(
            "ops",
            tid=tid,
            kind=kind,
            name=name,
            start_ns=ns(start_ms),
            end_ns=ns(start_ms + dur_ms),
            external_id=external_id,
            sequence=sequence,
            fwd_tid=fwd_tid,
            dims=dims,
            dtypes=dtypes,
        )

    def annotation(self, name: str, start_ms: float, dur_ms: float, *, tid: int = MAIN_TID) -> RunBuilder:
        return self.op(name, start_ms, dur_ms, kind="annotation", tid=tid)

    def python(self, name: str, start_ms: float, dur_ms: float, *, tid: int = MAIN_TID) -> RunBuilder:
        return self.op(name, start_ms, dur_ms, kind="python", tid=tid)

    def loader(self, start_ms: float, dur_ms: float, *, workers: int = 0, tid: int = MAIN_TID) -> RunBuilder:
        """A wait for the next batch."""
        return self.annotation(LOADERS[min(workers, 1)], start_ms, dur_ms, tid=tid)

    def api(
        self,
        name: str,
        start_ms: float,
        dur_ms: float,
        *,
        kind: str = "sync",
        tid: int = MAIN_TID,
        correlation: int = -1,
        external_id: int = -1,
    ) -> RunBuilder:
        return self._add(
            "launches",
            tid=tid,
            kind=kind,
            name=name,
            start_ns=ns(start_ms),
            end_ns=ns(start_ms + dur_ms),
            correlation=correlation,
            external_id=external_id,
        )

    def launch_kernel(
        self,
        name: str,
        launch_ms: float,
        start_ms: float,
        dur_ms: float,
        *,
        stream: int = 7,
        device: int = 0,
        kind: str = "compute",
        launch_dur_ms: float = 0.005,
        external_id: int = -1,
        tid: int = MAIN_TID,
        api: str = "cudaLaunchKernel",
    ) -> RunBuilder:
        """A kernel and the call that launched it."""
        correlation = self._next_correlation()
        api_kind = "graph" if "Graph" in api else "launch"
        self.api(
            api, launch_ms, launch_dur_ms, kind=api_kind, tid=tid, correlation=correlation, external_id=external_id
        )
        return self.kernel(
            name,
            start_ms,
            dur_ms,
            stream=stream,
            device=device,
            kind=kind,
            correlation=correlation,
            external_id=external_id,
        )

    def kernel(
        self,
        name: str,
        start_ms: float,
        dur_ms: float,
        *,
        stream: int = 7,
        device: int = 0,
        kind: str = "compute",
        correlation: int = -1,
        external_id: int = -1,
    ) -> RunBuilder:
        """A kernel whose launch was not recorded (unless *correlation* names it)."""
        return self._add(
            "kernels",
            device=device,
            stream=stream,
            kind=kind,
            name=name,
            start_ns=ns(start_ms),
            end_ns=ns(start_ms + dur_ms),
            correlation=correlation,
            external_id=external_id,
        )

    def copy(
        self,
        direction: str,
        start_ms: float,
        dur_ms: float,
        *,
        bytes: int = 1 << 20,  # noqa: A002 - the column's name
        pinned: bool | None = None,
        launch_ms: float | None = None,
        launch_dur_ms: float = 0.005,
        stream: int = 7,
        device: int = 0,
        external_id: int = -1,
        tid: int = MAIN_TID,
    ) -> RunBuilder:
        correlation = -1
        if launch_ms is not None:
            correlation = self._next_correlation()
            self.api("cudaMemcpyAsync", launch_ms, launch_dur_ms, kind="copy", tid=tid, correlation=correlation)
        return self._add(
            "copies",
            device=device,
            stream=stream,
            direction=direction,
            pinned=pinned,
            bytes=bytes,
            start_ns=ns(start_ms),
            end_ns=ns(start_ms + dur_ms),
            correlation=correlation,
            external_id=external_id,
        )

    def collective(
        self,
        op: str,
        start_ms: float,
        dur_ms: float,
        *,
        group: str = "0",
        bytes_in: int | None = 1 << 20,
        bytes_out: int | None = None,
        group_size: int | None = None,
        dtype: str = "Float",
        source: str = "kernel",
        enqueue_ms: float | None = None,
        name: str | None = None,
        stream: int = 20,
        device: int = 0,
        external_id: int = -1,
        tid: int = MAIN_TID,
        peer: int | None = None,
    ) -> RunBuilder:
        """A communication call: its kernel (with its launch) or, on a host-only trace, its CPU span."""
        name = name or (f"ncclDevKernel_{op}" if source == "kernel" else f"gloo:{op}")
        enqueue_ms = start_ms if enqueue_ms is None else enqueue_ms
        if source == "kernel":
            self.launch_kernel(
                name,
                enqueue_ms,
                start_ms,
                dur_ms,
                stream=stream,
                device=device,
                kind="communication",
                external_id=external_id,
                tid=tid,
            )
        else:
            self.annotation(name, start_ms, dur_ms, tid=tid)
        seq = self._seq[(self._rank, group)]
        self._seq[(self._rank, group)] += 1
        return self._add(
            "collectives",
            group=group,
            op=op,
            seq=seq,
            dtype=dtype,
            bytes_in=bytes_in,
            bytes_out=bytes_in if bytes_out is None else bytes_out,
            group_size=group_size,
            stream=stream if source == "kernel" else -1,
            source=source,
            name=name,
            peer=peer,
            start_ns=ns(start_ms),
            end_ns=ns(start_ms + dur_ms),
            enqueue_ns=ns(enqueue_ms),
            external_id=external_id,
        )

    def build(self) -> Run:
        for rank in sorted(set(self._ranks)):
            self._describe(rank)
        tables = {
            name: TABLES[name].conform(pl.DataFrame(rows, infer_schema_length=None))
            for name, rows in self._rows.items()
        }
        seen = tuple(sorted(set(self._ranks)))
        expected = tuple(range(self._world_size)) if self._world_size else ()
        return Run(tables, Coverage(ranks_seen=seen, ranks_expected=expected))

    def _add(self, table: str, **row: Any) -> RunBuilder:
        self._ranks.append(self._rank)
        self._rows[table].append({"rank": self._rank, **row})
        return self

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _describe(self, rank: int) -> None:
        """The rows of ``ranks`` and ``captures`` that every ingested run has."""
        spans = [row for rows in self._rows.values() for row in rows if row["rank"] == rank and "start_ns" in row]
        stated = [(ns(start), ns(end)) for who, start, end in self._captures if who == rank]
        captures = stated or [(min(row["start_ns"] for row in spans), max(row["end_ns"] for row in spans))]
        self._rows["ranks"].append(
            {
                "rank": rank,
                "source": f"rank{rank}.json",
                "host": "host0",
                "device_kind": self._device_kind,
                "world_size": self._world_size,
                "main_tid": MAIN_TID,
                "rank_known": True,
            }
        )
        for index, (start, end) in enumerate(captures):
            self._rows["captures"].append(
                {
                    "rank": rank,
                    "capture": index,
                    "source": f"rank{rank}.json",
                    "start_ns": start,
                    "end_ns": end,
                    "with_stack": self._with_stack,
                    "framework": "pytorch",
                }
            )
