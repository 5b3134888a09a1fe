"""The collectives of one trace: one row per call, from the device kernel where there is one, else from the host span.

A call leaves up to four spans (``c10d::allreduce_``, ``record_param_comms``, ``nccl:all_reduce``, the kernel); which of
them exist depends on torch, backend and what was profiled. Only one becomes the row; the others lend it what it lacks:

* device kernels always are rows; the description comes from the kernel's own arguments, else from the operator with its
  external id, else from the communication spans that enclose its launch;
* gloo, MPI and UCC run on threads of their own: their ``gloo:…`` span is the call (measured with torch 2.13: it covers
  the transfer, while ``c10d::…`` on the calling thread only enqueues); ``c10d::…`` says when it was issued;
* without any communication kernel (world size 1, CPU-only profile) the host's own spans of NCCL calls are kept.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from ddiag.ingest.values import Codes, IntColumn
from ddiag.model.naming import collective_op, dtype_bytes

Mask = npt.NDArray[np.bool_]

_WORKER_SPAN = re.compile(r"^(?:gloo|mpi|ucc):")
_ENQUEUE_SPAN = re.compile(r"^(?:nccl|xccl|hccl|cncl|ccl|oneccl):")
_HOST_OP = re.compile(r"^c10d::")
_RECORD = "record_param_comms"
NOT_A_CALL = frozenset({"wait", "init", "", "startcoalescing", "endcoalescing"})
GPU_ANNOTATION = 3
_MAX_DEPTH = 12
"""Communication spans nest at most this deep around a launch."""
_SAME_KERNEL = {"reduce_scatter": ("all_reduce", "reduce"), "all_gather": ("all_gather", "broadcast")}
"""Collectives gloo performs through another one."""


@dataclass(frozen=True)
class HostCalls:
    """Communication spans on the host, sorted by start."""

    kinds: list[tuple[str, int, int]]
    """(name, shapes, types) of every different span; shapes and types as codes."""
    kind: IntColumn
    tid: IntColumn
    start: IntColumn
    end: IntColumn
    call: IntColumn
    external_id: IntColumn
    is_record: Mask
    is_worker: Mask
    is_enqueue: Mask
    is_op: Mask

    def __len__(self) -> int:
        return len(self.kind)

    def names(self) -> list[str]:
        return [self.kinds[kind][0] for kind in self.kind.tolist()]


def host_calls(names: list[str], ops: dict[str, IntColumn]) -> HostCalls:
    """The rows of *ops* (columns of codes and times) that are about communication, on host threads."""
    roles = np.array([_role(name) for name in names], dtype=np.int8) if names else np.zeros(1, dtype=np.int8)
    rows = np.flatnonzero((roles[ops["name"]] > 0) & (ops["kind"] != GPU_ANNOTATION))
    rows = rows[np.argsort(ops["start_ns"][rows], kind="stable")]
    role = roles[ops["name"][rows]]
    kinds: Codes[tuple[int, int, int]] = Codes()
    looks = zip(*(ops[key][rows].tolist() for key in ("name", "dims", "dtypes")), strict=True)
    kind = np.array(list(map(kinds.__getitem__, looks)), dtype=np.int64)
    return HostCalls(
        kinds=[(names[code], dims, dtypes) for code, dims, dtypes in kinds],
        kind=kind,
        tid=ops["tid"][rows],
        start=ops["start_ns"][rows],
        end=ops["end_ns"][rows],
        call=ops["call"][rows],
        external_id=ops["external_id"][rows],
        is_record=role == 1,
        is_worker=role == 2,
        is_enqueue=role == 3,
        is_op=role == 4,
    )


def _role(name: str) -> int:
    if name == _RECORD:
        return 1
    if _WORKER_SPAN.match(name):
        return 2
    if _ENQUEUE_SPAN.match(name):
        return 3
    return 4 if _HOST_OP.match(name) else 0


def enclosing(calls: HostCalls, wanted: Mask, tid: IntColumn, at: IntColumn) -> IntColumn:
    """Row of the innermost *wanted* span of thread *tid* that covers the time *at*; -1 if none."""
    found = np.full(len(at), -1, dtype=np.int64)
    rows = np.flatnonzero(wanted)
    for thread in np.unique(calls.tid[rows]):
        mine = rows[calls.tid[rows] == thread]
        asked = np.flatnonzero(tid == thread)
        position = np.searchsorted(calls.start[mine], at[asked], side="right") - 1
        for depth in range(_MAX_DEPTH):
            candidate = position - depth
            fits = (candidate >= 0) & (found[asked] < 0)
            fits[fits] &= calls.end[mine[candidate[fits]]] >= at[asked[fits]]
            found[asked[fits]] = mine[candidate[fits]]
    return found


def issued_by(calls: HostCalls) -> IntColumn:
    """For every worker span the ``c10d::`` operator that issued it (row, or -1): first in, first out by kind.

    Operators with a device backend's spans inside them issued to that backend.
    """
    issuer = np.full(len(calls), -1, dtype=np.int64)
    inner = np.flatnonzero(calls.is_record | calls.is_enqueue)
    for_devices = np.zeros(len(calls), dtype=bool)
    for_devices[enclosing(calls, calls.is_op, calls.tid[inner], calls.start[inner])] = True
    if not calls.is_worker.any():
        return issuer
    names = calls.names()
    waiting: deque[int] = deque()
    for row in np.flatnonzero(calls.is_worker | (calls.is_op & ~for_devices)).tolist():
        if calls.is_op[row]:
            waiting.append(row)
        else:
            operator = next((k for k in waiting if _same_call(names[k], names[row])), None)
            if operator is not None:
                waiting.remove(operator)
                issuer[row] = operator
    return issuer


@lru_cache(maxsize=1024)
def _same_call(operator: str, span: str) -> bool:
    asked, done = collective_op(operator), collective_op(span)
    return asked is not None and (asked == done or done in _SAME_KERNEL.get(asked, ()))


@dataclass(frozen=True)
class Shapes:
    """Decodes the interned JSON texts of operator shapes and types."""

    texts: list[bytes]

    def first_tensor(self, dims: int, dtypes: int) -> tuple[str | None, int | None]:
        """(element type, bytes) of the first input tensor, as far as recorded."""
        sizes, types = self._list(dims), self._list(dtypes)
        dtype = types[0] if types and isinstance(types[0], str) and dtype_bytes(types[0]) is not None else None
        shape = sizes[0] if sizes else None
        while isinstance(shape, list) and shape and isinstance(shape[0], list):
            shape = shape[0]
        if (
            dtype is None
            or not isinstance(shape, list)
            or not all(isinstance(size, int) and size >= 0 for size in shape)
        ):
            return dtype, None
        total = dtype_bytes(dtype)
        for size in shape:
            total = None if total is None else total * size
        return dtype, total if total is not None and total < 1 << 60 else None

    def _list(self, code: int) -> list[object]:
        if code < 0:
            return []
        try:
            found = msgspec.json.decode(self.texts[code])
        except (msgspec.DecodeError, RecursionError):
            return []
        return found if isinstance(found, list) else []
