"""Entries of one dump into columns: whole columns at a time, texts interned, nothing kept per entry."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import polars as pl

from ddiag.ingest.flight_coalesced import one_per_call
from ddiag.ingest.flight_dump import Dump, Item, whole
from ddiag.ingest.flight_frames import user_frames
from ddiag.model.naming import collective_op

_PEERS = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+)")
_STATES = ("scheduled", "started", "completed")
_LATEST_NS, _LATEST_US = 10**17, 10**14
"""Above the first a time is in ns, above the second in µs: both hold from 1973 to the year 5000."""
_INT64 = 2**63
_zip = partial(zip, strict=True)


def columns(dump: Dump) -> pl.DataFrame:
    """Rows of the table ``flight`` without rank, ``group`` being the bare name, in the order recorded."""
    p2p = [_is_p2p(entry) for entry in dump.entries]
    keys = list(_zip(map(group_name, dump.entries), p2p, map(_seq, dump.entries, p2p)))
    return _table(one_per_call(dump.entries, keys, p2p), dump)


def _table(entries: list[Item], dump: Dump) -> pl.DataFrame:
    names = [str(entry["profiling_name"]) for entry in entries]
    groups = [group_name(entry) for entry in entries]
    p2p = [_is_p2p(entry) for entry in entries]
    sizes = list(_zip(map(repr, _all(entries, "input_sizes")), map(repr, _all(entries, "output_sizes"))))
    shapes = dict(_zip(sizes, entries))
    types = list(_zip(map(repr, _all(entries, "input_dtypes")), map(repr, _all(entries, "output_dtypes"))))
    typed = dict(_zip(types, entries))
    return pl.DataFrame(
        {
            "group": _looked_up(groups, str, pl.String),
            "call": _looked_up(p2p, lambda is_p2p: "p2p" if is_p2p else "coll", pl.String),
            "op": _looked_up(names, lambda name: call_of(name)[0], pl.String),
            "seq": _integers(list(map(_seq, entries, p2p))),
            "op_id": _integers(_all(entries, "op_id")),
            "peer": _looked_up(list(_zip(groups, names)), lambda key: _peer(dump, *key), pl.Int32),
            "state": _states(entries, names),
            "numel_in": _looked_up(sizes, lambda key: _numel(shapes[key].get("input_sizes")), pl.Int64),
            "numel_out": _looked_up(sizes, lambda key: _numel(shapes[key].get("output_sizes")), pl.Int64),
            "sizes": _looked_up(sizes, lambda key: _sizes(shapes[key]), pl.String),
            "dtype": _looked_up(types, lambda key: _types(typed[key]), pl.String),
            "created_ns": _times(entries, "time_created"),
            "started_ns": _times(entries, "time_discovered_started"),
            "completed_ns": _times(entries, "time_discovered_completed"),
            "timeout_ms": _integers(_all(entries, "timeout_ms")),
            "frame": _looked_up(user_frames(_all(entries, "frames")), lambda frame: frame, pl.String),
        }
    )


def _is_p2p(entry: Item) -> bool:
    return entry.get("is_p2p") is True or call_of(str(entry["profiling_name"]))[0] in ("send", "recv")


def call_of(profiling_name: str) -> tuple[str, int | None, int | None]:
    """(operation, own group rank, the other's group rank) of ``nccl:send 0->1``, ``xccl:all_reduce_barrier`` …"""
    found = _CALLS.get(profiling_name)
    if found is None:
        found = _CALLS[profiling_name] = _parsed_call(profiling_name)
    return found


_CALLS: dict[str, tuple[str, int | None, int | None]] = {}


def _parsed_call(profiling_name: str) -> tuple[str, int | None, int | None]:
    bare = profiling_name.rsplit(":", 1)[-1] if "->" not in profiling_name else profiling_name.split(":", 1)[-1]
    peers = _PEERS.search(bare)
    if peers is not None:
        return peers.group(1), int(peers.group(2)), int(peers.group(3))
    if bare.endswith("barrier"):
        return "barrier", None, None
    return collective_op(f"nccl:{bare}") or bare, None, None


def group_name(entry: Item) -> str:
    """The group's name; before torch 2.4 the process's own number of it."""
    group = entry.get("process_group")
    if isinstance(group, (list, tuple)) and group:
        return str(group[0])
    return str(group if isinstance(group, str) else entry.get("pg_id", "0"))


def _seq(entry: Item, is_p2p: bool) -> int | None:  # noqa: FBT001 - one of two counters
    seq = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id")
    if seq is None:
        seq = entry.get("seq_id")
    return seq if type(seq) is int else whole(seq)


def _all(entries: Iterable[Item], key: str) -> list[Any]:
    return [entry.get(key) for entry in entries]


def _looked_up(values: Sequence[Hashable], meaning: Callable[[Any], Any], dtype: Any) -> pl.Series:
    """``meaning`` of each value; it is asked once per different one, and texts share their memory."""
    codes: dict[Hashable, int] = {}
    places = [codes.setdefault(value, len(codes)) for value in values]
    meanings = pl.Series([meaning(value) for value in codes], dtype=dtype, strict=False)
    return meanings.gather(places) if places else meanings


def _integers(values: list[Any]) -> pl.Series:
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        found = map(whole, values)
        return pl.Series([one if one is not None and abs(one) < _INT64 else None for one in found], dtype=pl.Int64)


def _times(entries: list[Item], key: str) -> pl.Series:
    """Unix ns of a time that is written in ns or, before torch 2.3, in µs; 0 means never, as in JSON dumps."""
    name = next((name for name in (f"{key}_ns", f"{key}_us", key) if entries and name in entries[0]), f"{key}_ns")
    found = _integers(_all(entries, name))
    return (
        pl.DataFrame({"t": found})
        .select(
            pl.when(pl.col("t") > _LATEST_NS)
            .then(pl.col("t"))
            .when(pl.col("t") > _LATEST_US)
            .then(pl.col("t") * 1000)
            .when(pl.col("t") > 0)
            .then(pl.col("t") * (1000 if name.endswith("_us") else 1))
            .alias("t")
        )
        .to_series()
    )


def _states(entries: list[Item], names: list[str]) -> pl.Series:
    """As written; gloo's stay scheduled (torch 2.13), so there a retired call is over."""
    retired = (entry.get("retired") is True for entry in entries)
    return _looked_up(list(_zip(map(str, _all(entries, "state")), retired, names)), _state, pl.String)


def _state(key: tuple[str, bool, str]) -> str:
    written, retired, name = key[0].lower(), key[1], key[2]
    if retired and name.startswith("gloo:"):
        return "completed"
    return written if written in _STATES else "scheduled"


def _peer(dump: Dump, group: str, name: str) -> int | None:
    """Global rank of the other side; the group's own numbering where its members are not known."""
    other = call_of(name)[2]
    known = dump.groups.get(group)
    if other is None or known is None or known.ranks is None:
        return other
    return known.ranks[other] if other < len(known.ranks) else None


def _tensors(sizes: Any) -> list[list[Any]] | None:
    if not isinstance(sizes, (list, tuple)):
        return None
    if sizes and not isinstance(sizes[0], (list, tuple)):
        return [list(sizes)]
    return [list(one) for one in sizes if isinstance(one, (list, tuple))]


def _numel(sizes: Any) -> int | None:
    tensors = _tensors(sizes)
    if tensors is None:
        return None
    found = sum(prod(whole(size) or 0 for size in tensor) for tensor in tensors)
    return found if found < _INT64 else None


def _sizes(entry: Item) -> str | None:
    if "input_sizes" not in entry and "output_sizes" not in entry:
        return None
    both = [_tensors(entry.get("input_sizes")), _tensors(entry.get("output_sizes"))]
    return json.dumps(both, separators=(",", ":"), default=str)


def _types(entry: Item) -> str | None:
    found = (entry.get("input_dtypes"), entry.get("output_dtypes"))
    both = [one for types in found if isinstance(types, (list, tuple)) for one in types]
    return "+".join(dict.fromkeys(map(str, both))) or None
