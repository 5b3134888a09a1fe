"""Entries of one dump into a table: whole columns at a time, texts interned, nothing kept per entry."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import polars as pl

from ddiag.ingest.flight_dump import DumpGroup, whole
from ddiag.ingest.flight_entries import Entries
from ddiag.ingest.flight_frames import user_frames

_STATES = ("scheduled", "started", "completed")
_LATEST_NS, _LATEST_US = 10**17, 10**14
"""Above the first a time is in ns, above the second in µs: both hold from 1973 to the year 5000."""
_INT64 = 2**63
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def columns(entries: Entries, groups: Mapping[str, DumpGroup], rank: int | None) -> pl.DataFrame:
    """Rows of the table ``flight``, ``group`` being the bare name, in the order recorded."""
    names, calls = entries.names, entries.calls
    called = _Coded(names)
    sizes = _Coded(_spelled(list(zip(entries["input_sizes"], entries["output_sizes"], strict=True))))
    types = _Coded(_spelled(list(zip(entries["input_dtypes"], entries["output_dtypes"], strict=True))))
    ends = _Coded(list(zip(entries.groups, names, strict=True)))
    return pl.DataFrame(
        {
            "rank": pl.Series([rank], dtype=pl.Int32).new_from_index(0, entries.count),
            "group": ends.column(lambda end: end[0], pl.String),
            "call": _Coded(entries.p2p).column(lambda is_p2p: "p2p" if is_p2p else "coll", pl.String),
            "op": called.column(lambda name: calls[name].op, pl.String),
            "seq": _integers(entries.seqs),
            "op_id": _integers(entries["op_id"]),
            "peer": ends.column(lambda end: _peer(groups.get(end[0]), calls[end[1]].other), pl.Int32),
            "state": _states(entries),
            "numel_in": sizes.column(lambda text: _numel(text, 0), pl.Int64),
            "numel_out": sizes.column(lambda text: _numel(text, 1), pl.Int64),
            "sizes": sizes.column(_sizes, pl.String),
            "dtype": types.column(_types, pl.String),
            "created_ns": _times(entries, "time_created"),
            "started_ns": _times(entries, "time_discovered_started"),
            "completed_ns": _times(entries, "time_discovered_completed"),
            "timeout_ms": _integers(entries["timeout_ms"]),
            "frame": _Coded(user_frames(entries["frames"])).column(lambda frame: frame, pl.String),
        }
    )


class _Coded:
    """Values by number, so that what they mean is asked once per different one, and texts share their memory."""

    def __init__(self, values: Sequence[Hashable]) -> None:
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        self._different = list(numbers)
        self._places = pl.Series([numbers[value] for value in values], dtype=pl.UInt32)

    def column(self, meaning: Callable[[Any], Any], dtype: Any) -> pl.Series:
        """``meaning`` of each value."""
        return pl.Series([meaning(value) for value in self._different], dtype=dtype, strict=False)[self._places]


def _integers(values: Sequence[Any]) -> pl.Series:
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        found = map(whole, values)
        return pl.Series([one if one is not None and abs(one) < _INT64 else None for one in found], dtype=pl.Int64)


def _times(entries: Entries, key: str) -> pl.Series:
    """Unix ns of a time that is written in ns or, before torch 2.3, in µs; 0 means never, as in JSON dumps."""
    values = entries[f"{key}_ns"]
    known = [value for value in values if type(value) is int and value > _LATEST_NS]
    if len(known) + values.count(None) == len(values) and known:
        return _integers(values)
    found = _integers(values)
    if found.null_count() == len(found):
        found = _integers(entries[f"{key}_us"])
        found = pl.select(pl.when(found < _LATEST_US).then(found * 1000).otherwise(found)).to_series()
    in_ns = pl.when(found > _LATEST_NS).then(found).when(found > _LATEST_US).then(found * 1000)
    return pl.select(in_ns.when(found > 0).then(found)).to_series()


def _states(entries: Entries) -> pl.Series:
    """As written; gloo's stay scheduled (torch 2.13), so there a retired call is over."""
    written: list[Hashable] = list(map(str, entries["state"]))
    if any(name.startswith("gloo:") for name in entries.calls):
        gloo = ((retired is True, name) for retired, name in zip(entries["retired"], entries.names, strict=True))
        over = [retired and name.startswith("gloo:") for retired, name in gloo]
        written = ["completed" if is_over else state for is_over, state in zip(over, written, strict=True)]
    return _Coded(written).column(lambda state: state.lower() if state.lower() in _STATES else "scheduled", pl.String)


def _peer(group: DumpGroup | None, other: int | None) -> int | None:
    """Global rank of the other side; the group's own numbering where its members are not known."""
    if other is None or group is None or group.ranks is None:
        return other
    return group.ranks[other] if other < len(group.ranks) else None


def _spelled(pairs: list[tuple[Any, Any]]) -> list[bytes | None]:
    """Each pair as JSON: a key that is equal for equal lists."""
    try:
        return list(map(_encode, pairs))
    except (TypeError, ValueError, RecursionError):
        return [None] * len(pairs)


def _tensors(sizes: Any) -> list[list[Any]] | None:
    if not isinstance(sizes, list):
        return None
    if sizes and not isinstance(sizes[0], list):
        return [sizes]
    return [one for one in sizes if isinstance(one, list)]


def _numel(text: bytes | None, side: int) -> int | None:
    tensors = _tensors(_decode(text)[side]) if text is not None else None
    if tensors is None:
        return None
    found = sum(prod(whole(size) or 0 for size in tensor) for tensor in tensors)
    return found if found < _INT64 else None


def _sizes(text: bytes | None) -> str | None:
    both = _decode(text) if text is not None else (None, None)
    return None if both[0] is None and both[1] is None else _encode([_tensors(one) for one in both]).decode()


def _types(text: bytes | None) -> str | None:
    both = _decode(text) if text is not None else ()
    found = [str(one) for types in both if isinstance(types, list) for one in types]
    return "+".join(dict.fromkeys(found)) or None
