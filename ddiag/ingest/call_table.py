"""Puts the calls found by :mod:`ddiag.ingest.collectives` into the table of collectives of one trace."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass
class Rows:
    """Columns under construction; one list per column of the table."""

    described: list[Description] = field(default_factory=list)
    columns: dict[str, list[object]] = field(default_factory=dict)

    def add(self, described: Description, **values: object) -> None:
        self.described.append(described)
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)

    def frame(self) -> pl.DataFrame | None:
        if not self.described:
            return None
        repeated = {name: [getattr(call, name) for call in self.described] for name in Description.__dataclass_fields__}
        return pl.DataFrame(repeated | self.columns, schema=_SCHEMA, strict=False)


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
    rows = Rows()
    _add_kernels(rows, kernels, calls, facts)
    _add_workers(rows, calls, facts)
    if not len(kernels.name) and (facts.has_nccl or not calls.is_worker.any()):
        _add_enqueued(rows, calls, facts)
    return rows.frame()


_SCHEMA = {
    "group": pl.String, "op": pl.String, "dtype": pl.String, "bytes_in": pl.Int64, "bytes_out": pl.Int64,
    "group_size": pl.Int32, "stream": pl.Int64, "source": pl.String, "name": pl.String, "peer": pl.Int32,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "enqueue_ns": pl.Int64, "external_id": pl.Int64,
}  # fmt: skip


def _add_kernels(rows: Rows, kernels: KernelCalls, calls: HostCalls, facts: CallFacts) -> None:
    by_id = _records_by_id(calls)
    outer = enclosing(calls, calls.is_record, kernels.launch_tid, kernels.launch_start).tolist()
    inner = enclosing(calls, calls.is_enqueue, kernels.launch_tid, kernels.launch_start).tolist()
    host_op = enclosing(calls, calls.is_op, kernels.launch_tid, kernels.launch_start).tolist()
    starts, ends, ids = kernels.start.tolist(), kernels.end.tolist(), kernels.external_id.tolist()
    streams, codes, launched = kernels.stream.tolist(), kernels.call.tolist(), kernels.launch_start.tolist()
    for k, name in enumerate(kernels.name):
        record = by_id.get(ids[k], -1)
        if record < 0 or calls.start[record] > starts[k]:
            record = outer[k]
        code = codes[k] if codes[k] >= 0 or record < 0 else int(calls.call[record])
        spans = [row for row in (inner[k], host_op[k]) if row >= 0]
        enqueue = launched[k] if launched[k] >= 0 or record < 0 else int(calls.start[record])
        rows.add(
            facts.described(code, (name, *(calls.name[row] for row in spans)), _shapes(calls, spans)),
            stream=streams[k],
            source="kernel",
            name=name,
            start_ns=starts[k],
            end_ns=ends[k],
            enqueue_ns=enqueue if enqueue >= 0 else None,
            external_id=int(calls.external_id[record]) if record >= 0 else ids[k],
        )


def _records_by_id(calls: HostCalls) -> dict[int, int]:
    found = np.flatnonzero(calls.is_record & (calls.external_id >= 0))
    return dict(zip(calls.external_id[found].tolist(), found.tolist(), strict=True))


def _add_workers(rows: Rows, calls: HostCalls, facts: CallFacts) -> None:
    issuer = issued_by(calls)
    for row in np.flatnonzero(calls.is_worker).tolist():
        operator = int(issuer[row])
        names = [calls.name[row], calls.name[operator]] if operator >= 0 else [calls.name[row]]
        _add_host(rows, calls, facts, row=row, names=names, operator=operator)


def _add_enqueued(rows: Rows, calls: HostCalls, facts: CallFacts) -> None:
    """No kernel: described operators, else backend spans, else c10d operators."""
    described = [
        row
        for row in np.flatnonzero(calls.is_record & (calls.call >= 0)).tolist()
        if _is_call(facts.metas[int(calls.call[row])])
    ]
    chosen = described or np.flatnonzero(calls.is_enqueue).tolist()
    if not chosen and not calls.is_worker.any():
        chosen = [row for row in np.flatnonzero(calls.is_op).tolist() if collective_op(calls.name[row]) is not None]
    for row in chosen:
        _add_host(rows, calls, facts, row=row, names=[calls.name[row]], operator=row)


def _is_call(meta: CallMeta) -> bool:
    return meta.collective.lower().replace("_", "") not in _NOT_A_CALL


def _add_host(rows: Rows, calls: HostCalls, facts: CallFacts, *, row: int, names: list[str], operator: int) -> None:
    rows.add(
        facts.described(int(calls.call[row]), tuple(names), _shapes(calls, [row])),
        stream=-1,
        source="host",
        name=calls.name[row],
        start_ns=int(calls.start[row]),
        end_ns=int(calls.end[row]),
        enqueue_ns=int(calls.start[operator]) if operator >= 0 else None,
        external_id=int(calls.external_id[operator if operator >= 0 else row]),
    )


def _shapes(calls: HostCalls, spans: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((int(calls.dims[row]), int(calls.dtypes[row])) for row in spans)


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
