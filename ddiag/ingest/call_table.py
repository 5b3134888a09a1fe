"""Puts the calls found by :mod:`ddiag.ingest.collectives` into the table of collectives of one trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ddiag.ingest.calls import CallMeta
from ddiag.ingest.collectives import NOT_A_CALL, HostCalls, Shapes, enclosing, issued_by
from ddiag.ingest.values import Codes, IntColumn
from ddiag.model.naming import collective_op


@dataclass(frozen=True)
class KernelCalls:
    """Communication kernels of one trace with what launched them (-1: unknown)."""

    names: list[str]
    """Every name of the trace; ``name`` holds positions in it."""
    name: IntColumn
    start: IntColumn
    end: IntColumn
    stream: IntColumn
    call: IntColumn
    external_id: IntColumn
    launch_tid: IntColumn
    launch_start: IntColumn

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class CallFacts:
    """What the trace says about calls and groups."""

    metas: list[CallMeta]
    shapes: Shapes
    default_group: str
    """The only process group there is; "unknown" when there are several or none is known."""
    group_sizes: dict[str, int]
    has_nccl: bool


Look = tuple[str, int, str, tuple[int, ...]]
"""Source, description code (-1: none), name, and kinds of the host spans that tell more (-1: none)."""


@dataclass(frozen=True)
class Part:
    """Some rows of the table: how each looks, and what is its own."""

    looks: list[Look]
    stream: IntColumn
    start_ns: IntColumn
    end_ns: IntColumn
    enqueue_ns: IntColumn
    external_id: IntColumn


def call_table(kernels: KernelCalls, calls: HostCalls, facts: CallFacts) -> pl.DataFrame | None:
    """The collectives of one trace without rank and seq, times without the trace's base; None when there are none."""
    workers = np.flatnonzero(calls.is_worker)
    parts = [_kernel_part(kernels, calls), _host_part(calls, workers, issued_by(calls)[workers])]
    if not len(kernels) and (facts.has_nccl or not len(workers)):
        enqueued = _enqueued(calls, facts)
        parts.append(_host_part(calls, enqueued, enqueued))
    codes: Codes[Look] = Codes()
    look = [codes[one] for part in parts for one in part.looks]
    if not look:
        return None
    described = pl.DataFrame(
        [_describe(facts, calls, one) for one in codes], schema=_DESCRIPTION, strict=False, orient="row"
    )
    own = {key: np.concatenate([getattr(part, key) for part in parts]) for key in _OWN}
    return (
        described[look]
        .with_columns(**{key: pl.Series(column) for key, column in own.items()})
        .with_columns(pl.when(pl.col("enqueue_ns") >= 0).then(pl.col("enqueue_ns")))
    )


_DESCRIPTION = {
    "source": pl.String, "name": pl.String, "group": pl.String, "op": pl.String, "dtype": pl.String,
    "bytes_in": pl.Int64, "bytes_out": pl.Int64, "group_size": pl.Int32, "peer": pl.Int32,
}  # fmt: skip
_OWN = ("stream", "start_ns", "end_ns", "enqueue_ns", "external_id")


def _kernel_part(kernels: KernelCalls, calls: HostCalls) -> Part:
    """Device kernels; what encloses the launch describes them where they do not do so themselves."""
    record, inner, operator = (
        enclosing(calls, wanted, kernels.launch_tid, kernels.launch_start)
        for wanted in (calls.is_record, calls.is_enqueue, calls.is_op)
    )
    record = np.where(record >= 0, record, _record_by_id(kernels, calls))
    code = np.where((kernels.call < 0) & (record >= 0), _at(calls.call, record), kernels.call)
    spans = zip(_at(calls.kind, inner).tolist(), _at(calls.kind, operator).tolist(), strict=True)
    looks = zip(code.tolist(), kernels.name.tolist(), spans, strict=True)
    return Part(
        looks=[("kernel", call, kernels.names[name], around) for call, name, around in looks],
        stream=kernels.stream,
        start_ns=kernels.start,
        end_ns=kernels.end,
        enqueue_ns=np.where(kernels.launch_start >= 0, kernels.launch_start, _at(calls.start, record)),
        external_id=np.where(record >= 0, _at(calls.external_id, record), kernels.external_id),
    )


def _at(column: IntColumn, rows: IntColumn) -> IntColumn:
    """``column[rows]`` with -1 for row -1."""
    return np.append(column, -1)[rows]


def _record_by_id(kernels: KernelCalls, calls: HostCalls) -> IntColumn:
    """The ``record_param_comms`` with the kernel's external id that began before it; -1 if none."""
    rows = np.flatnonzero(calls.is_record & (calls.external_id >= 0))
    if not len(rows):
        return np.full(len(kernels), -1, dtype=np.int64)
    rows = rows[np.argsort(calls.external_id[rows], kind="stable")]
    place = np.minimum(np.searchsorted(calls.external_id[rows], kernels.external_id), len(rows) - 1)
    found = rows[place]
    fits = (calls.external_id[found] == kernels.external_id) & (calls.start[found] <= kernels.start)
    return np.where(fits, found, -1)


def _host_part(calls: HostCalls, rows: IntColumn, issuers: IntColumn) -> Part:
    """Spans of the host as calls, each with the operator that issued it."""
    codes, kinds, issuing = calls.call[rows].tolist(), calls.kind[rows].tolist(), _at(calls.kind, issuers).tolist()
    return Part(
        looks=[
            ("host", code, calls.kinds[kind][0], (kind, issuer))
            for code, kind, issuer in zip(codes, kinds, issuing, strict=True)
        ],
        stream=np.full(len(rows), -1, dtype=np.int64),
        start_ns=calls.start[rows],
        end_ns=calls.end[rows],
        enqueue_ns=_at(calls.start, issuers),
        external_id=calls.external_id[np.where(issuers >= 0, issuers, rows)],
    )


def _enqueued(calls: HostCalls, facts: CallFacts) -> IntColumn:
    """Without kernels: described operators, else backend spans, else c10d operators."""
    described = [
        row
        for row in np.flatnonzero(calls.is_record & (calls.call >= 0)).tolist()
        if _is_call(facts.metas[int(calls.call[row])])
    ]
    chosen = described or np.flatnonzero(calls.is_enqueue).tolist()
    if not chosen and not calls.is_worker.any():
        names = calls.names()
        chosen = [row for row in np.flatnonzero(calls.is_op).tolist() if collective_op(names[row]) is not None]
    return np.array(chosen, dtype=np.int64)


def _is_call(meta: CallMeta) -> bool:
    return meta.collective.lower().replace("_", "") not in NOT_A_CALL


def _describe(facts: CallFacts, calls: HostCalls, look: Look) -> tuple[object, ...]:
    """Group, operation and size of a call: its own description first, then the names and shapes of its spans."""
    source, code, name, around = look
    meta = facts.metas[code] if code >= 0 else None
    spans = [calls.kinds[kind] for kind in around if kind >= 0]
    op = _operation(meta, [name, *(span for span, _, _ in spans)])
    group = (meta.group if meta else "") or facts.default_group
    size = meta.group_size if meta and meta.group_size > 0 else facts.group_sizes.get(group)
    tensors = [facts.shapes.first_tensor(dims, dtypes) for _, dims, dtypes in spans]
    dtype, inputs = next((tensor for tensor in tensors if tensor[0] is not None and op != "barrier"), (None, None))
    outputs = _outputs(op, inputs, size)
    if meta is not None and meta.dtype and meta.in_elements >= 0:
        dtype, inputs, outputs = meta.dtype, meta.bytes_in, meta.bytes_out
    peer = {"send": meta.dst_rank, "recv": meta.src_rank}.get(op, -1) if meta else -1
    return source, name, group, op, dtype, inputs, outputs, size, peer if peer >= 0 else None


def _operation(meta: CallMeta | None, names: list[str]) -> str:
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
