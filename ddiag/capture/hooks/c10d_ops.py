"""The operations of torch's ``c10d`` namespace, as the Python tiers see them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from ddiag.schema.phases import Op

OPERATIONS: dict[str, Op] = {
    "allreduce_": Op.ALL_REDUCE,
    "allreduce_coalesced_": Op.ALL_REDUCE,
    "_allgather_base_": Op.ALL_GATHER,
    "allgather_": Op.ALL_GATHER,
    "allgather_coalesced_": Op.ALL_GATHER,
    "allgather_into_tensor_coalesced_": Op.ALL_GATHER,
    "_reduce_scatter_base_": Op.REDUCE_SCATTER,
    "reduce_scatter_": Op.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced_": Op.REDUCE_SCATTER,
    "broadcast_": Op.BROADCAST,
    "reduce_": Op.REDUCE,
    "alltoall_": Op.ALL_TO_ALL,
    "alltoall_base_": Op.ALL_TO_ALL,
    "gather_": Op.GATHER,
    "scatter_": Op.SCATTER,
    "send": Op.SEND,
    "recv_": Op.RECV,
    "recv_any_source_": Op.RECV,
    "barrier": Op.BARRIER,
    "monitored_barrier_": Op.BARRIER,
}
"""By name; kept equal to the native kernel's list by a test."""
_HOOKED = {
    "ALLREDUCE": Op.ALL_REDUCE,
    "ALLGATHER": Op.ALL_GATHER,
    "REDUCE_SCATTER": Op.REDUCE_SCATTER,
    "BROADCAST": Op.BROADCAST,
    "REDUCE": Op.REDUCE,
    "ALLTOALL": Op.ALL_TO_ALL,
    "GATHER": Op.GATHER,
    "SCATTER": Op.SCATTER,
    "SEND": Op.SEND,
    "RECV": Op.RECV,
    "BARRIER": Op.BARRIER,
}
"""By the name in torch's ``HookOpName``."""


@dataclass(frozen=True)
class Places:
    """Where an operation's schema, which differs between versions of torch, keeps what we look at; -1: nowhere."""

    group: int = -1
    asynchronous: int = -1
    peer: int = -1
    given: int = -1
    taken: int = -1
    both: int = -1


def places(arguments: list[str]) -> Places:
    """From the names of a schema's arguments."""
    found = {}
    for at, name in enumerate(arguments):
        role = _role(name)
        if role and role not in found:
            found[role] = at
    return Places(**found)


def _role(name: str) -> str | None:
    if name in ("root_rank", "dst", "src"):
        return "peer"
    if name.startswith("output"):
        return "taken"
    if name.startswith("input"):
        return "given"
    exact = {"process_group": "group", "async_op": "asynchronous", "tensors": "both", "tensor": "both"}
    return exact.get(name)


def size(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in (lists of) lists."""
    if isinstance(value, (list, tuple)):
        total = 0
        for one in value:
            total += size(one)
        return total
    return 0 if value is None else _nbytes(value)


def _nbytes(tensor: Any) -> int:
    """Of a sparse tensor, which torch tells no size of: its indices and values."""
    try:
        return int(tensor.nbytes)
    except RuntimeError:
        return int(tensor._indices().nbytes + tensor._values().nbytes) if tensor.is_sparse else 0


def first(value: Any) -> Any:
    """The first tensor of a tensor or of (lists of) lists; None of nothing."""
    while isinstance(value, (list, tuple)):
        if not value:
            return None
        value = value[0]
    return value


def no_async_flag() -> list[str]:
    """What cannot be told of torch's older schemas, which do not say who waits: every call looks asynchronous."""
    schema = sys.modules["torch"].ops.c10d.allreduce_.default._schema
    known = any(one.name == "async_op" for one in schema.arguments)
    return [] if known else ["whether a call is asynchronous"]


def hook_operations(names: Any) -> list[int]:
    """Our number of each of torch's operations, by its own; -1 for none of ours.

    A list, since torch's names hash and compare through C++, which costs more than the rest of the look-up.
    """
    members = names.__members__
    found = [-1] * (max(int(one) for one in members.values()) + 1)
    for name, one in members.items():
        found[int(one)] = int(_HOOKED.get(name, -1))
    return found
