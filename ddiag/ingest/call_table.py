"""Puts the calls found by :mod:`ddiag.ingest.collectives` into the table of collectives of one trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from ddiag.ingest.calls import CallMeta
from ddiag.ingest.collectives import _NOT_A_CALL, HostCalls, Shapes, enclosing, issued_by
from ddiag.ingest.values import IntColumn
from ddiag.model.naming import collective_op


@dataclass(frozen=True)
class KernelCalls:
    """Communication kernels of one trace with what launched them (-1: unknown)."""

    name: list[str]
    start: IntColumn
    end: IntColumn
    stream: IntColumn
    call: IntColumn
    external_id: IntColumn
    launch_tid: IntColumn
    launch_start: IntColumn


@dataclass(frozen=True)
class Description:
    """What is the same for every repetition of a call."""

    group: str
    op: str
    dtype: str | None
    bytes_in: int | None
    bytes_out: int | None
    group_size: int | None
    peer: int | None


class Row(NamedTuple):
    """One call: what all its repetitions share, and what is its own."""

    described: Description
    stream: int
    source: str
    name: str
    start_ns: int
    end_ns: int
    enqueue_ns: int | None
    external_id: int


@dataclass
class CallFacts:
    """What the trace says about calls and groups; repeated calls are described once."""

    metas: list[CallMeta]
    shapes: Shapes
    default_group: str
    """The only process group there is; "unknown" when there are several or none is known."""
    group_sizes: dict[str, int]
    has_nccl: bool
    _known: dict[tuple[object, ...], Description] = field(default_factory=dict)

    def described(self, code: int, names: tuple[str, ...], shapes: tuple[tuple[int, int], ...]) -> Description:
        key = (code, names, shapes)
        if key not in self._known:
            self._known[key] = _describe(self, self.metas[code] if code >= 0 else None, names, shapes)
        return self._known[key]


def call_table(kernels: KernelCalls, calls: HostCalls, facts: CallFacts) -> pl.DataFrame | None:
    """The collectives of one trace without rank and seq, times without the trace's base; None when there are none."""
    rows = [*_kernel_rows(kernels, calls, facts), *_worker_rows(calls, facts)]
    if not len(kernels.name) and (facts.has_nccl or not calls.is_worker.any()):
        rows += _enqueued_rows(calls, facts)
    if not rows:
        return None
    described, *own = zip(*rows, strict=True)
    shared = {name: [getattr(call, name) for call in described] for name in Description.__dataclass_fields__}
    return pl.DataFrame(shared | dict(zip(Row._fields[1:], own, strict=True)), schema=_SCHEMA, strict=False)


_SCHEMA = {
    "group": pl.String, "op": pl.String, "dtype": pl.String, "bytes_in": pl.Int64, "bytes_out": pl.Int64,
    "group_size": pl.Int32, "stream": pl.Int64, "source": pl.String, "name": pl.String, "peer": pl.Int32,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "enqueue_ns": pl.Int64, "external_id": pl.Int64,
}  # fmt: skip


def _kernel_rows(kernels: KernelCalls, calls: HostCalls, facts: CallFacts) -> Iterator[Row]:
    by_id = _records_by_id(calls)
    around = [
        enclosing(calls, wanted, kernels.launch_tid, kernels.launch_start).tolist()
        for wanted in (calls.is_record, calls.is_enqueue, calls.is_op)
    ]
    begun, ids, described = calls.start.tolist(), calls.external_id.tolist(), calls.call.tolist()
    columns = (kernels.start, kernels.end, kernels.external_id, kernels.stream, kernels.call, kernels.launch_start)
    rows = zip(kernels.name, *(column.tolist() for column in columns), *around, strict=True)
    for name, start, end, external_id, stream, call, launched, outer, inner, operator in rows:
        record = by_id.get(external_id, -1)
        if record < 0 or begun[record] > start:
            record = outer
        code = call if call >= 0 or record < 0 else described[record]
        spans = [row for row in (inner, operator) if row >= 0]
        enqueue = launched if launched >= 0 or record < 0 else begun[record]
        yield Row(
            facts.described(
                code, (name, *(calls.name[row] for row in spans)), tuple(calls.shape[row] for row in spans)
            ),
            stream=stream,
            source="kernel",
            name=name,
            start_ns=start,
            end_ns=end,
            enqueue_ns=enqueue if enqueue >= 0 else None,
            external_id=ids[record] if record >= 0 else external_id,
        )


def _records_by_id(calls: HostCalls) -> dict[int, int]:
    found = np.flatnonzero(calls.is_record & (calls.external_id >= 0))
    return dict(zip(calls.external_id[found].tolist(), found.tolist(), strict=True))


def _worker_rows(calls: HostCalls, facts: CallFacts) -> Iterator[Row]:
    issuer = issued_by(calls)
    for row in np.flatnonzero(calls.is_worker).tolist():
        operator = int(issuer[row])
        names = [calls.name[row], calls.name[operator]] if operator >= 0 else [calls.name[row]]
        yield _host_row(calls, facts, row=row, names=names, operator=operator)


def _enqueued_rows(calls: HostCalls, facts: CallFacts) -> list[Row]:
    """No kernel: described operators, else backend spans, else c10d operators."""
    described = [
        row
        for row in np.flatnonzero(calls.is_record & (calls.call >= 0)).tolist()
        if _is_call(facts.metas[int(calls.call[row])])
    ]
    chosen = described or np.flatnonzero(calls.is_enqueue).tolist()
    if not chosen and not calls.is_worker.any():
        chosen = [row for row in np.flatnonzero(calls.is_op).tolist() if collective_op(calls.name[row]) is not None]
    return [_host_row(calls, facts, row=row, names=[calls.name[row]], operator=row) for row in chosen]


def _is_call(meta: CallMeta) -> bool:
    return meta.collective.lower().replace("_", "") not in _NOT_A_CALL


def _host_row(calls: HostCalls, facts: CallFacts, *, row: int, names: list[str], operator: int) -> Row:
    return Row(
        facts.described(int(calls.call[row]), tuple(names), (calls.shape[row],)),
        stream=-1,
        source="host",
        name=calls.name[row],
        start_ns=int(calls.start[row]),
        end_ns=int(calls.end[row]),
        enqueue_ns=int(calls.start[operator]) if operator >= 0 else None,
        external_id=int(calls.external_id[operator if operator >= 0 else row]),
    )


def _describe(
    facts: CallFacts, meta: CallMeta | None, names: tuple[str, ...], shapes: tuple[tuple[int, int], ...]
) -> Description:
    """Group, operation and size of a call: its own description first, then the names and shapes of its spans."""
    op = _operation(meta, names)
    group = (meta.group if meta else "") or facts.default_group
    size = meta.group_size if meta and meta.group_size > 0 else facts.group_sizes.get(group)
    tensors = [facts.shapes.first_tensor(dims, dtypes) for dims, dtypes in shapes]
    dtype, inputs = next((tensor for tensor in tensors if tensor[0] is not None), (None, None))
    outputs = _outputs(op, inputs, size)
    if meta is not None and meta.dtype and meta.in_elements >= 0:
        dtype, inputs, outputs = meta.dtype, meta.bytes_in, meta.bytes_out
    peer = {"send": meta.dst_rank, "recv": meta.src_rank}.get(op, -1) if meta else -1
    return Description(group, op, dtype, inputs, outputs, size, peer if peer >= 0 else None)


def _operation(meta: CallMeta | None, names: tuple[str, ...]) -> str:
    told = [meta.collective] if meta and meta.collective else []
    known = [op for name in (*told, *reversed(names)) if (op := collective_op(name)) is not None]
    return next((op for op in known if op != "unknown"), "unknown")


def _outputs(op: str, inputs: int | None, size: int | None) -> int | None:
    """Output bytes that follow from the input's; the trace did not record them."""
    if inputs is None:
        return None
    if op == "all_gather":
        return inputs * size if size else None
    if op == "reduce_scatter":
        return inputs // size if size else None
    return inputs if op in ("all_reduce", "broadcast", "reduce", "send", "recv") else None
