"""Coalesced calls: what torch records as several entries is one call, and only its last entry knows how it went.

Inside ``ncclGroupStart`` … ``ncclGroupEnd`` every operation has an entry that stays ``scheduled`` for ever, all with
one sequence number; the entry ``nccl:coalesced`` that ends them has the true state. A rank stuck before that end lacks
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddiag.ingest.flight_dump import Item

_STATE = ("state", "retired", "time_discovered_started_ns", "time_discovered_completed_ns")
_TENSORS = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
COALESCED = "coalesced"


def is_end(entry: Item) -> bool:
    """The entry that ends a coalesced call."""
    return str(entry["profiling_name"]).rsplit(":", 1)[-1] == COALESCED


def one_per_call(entries: list[Item], keys: Sequence[Any], p2p: Sequence[bool]) -> list[Item]:
    """*entries* with coalesced collectives as one entry each, and batched sends in the state of their batch.

    *keys* say per entry which group, kind and sequence number it has; order is kept.
    """
    sets: dict[Any, list[int]] = {}
    for place, key in enumerate(keys):
        sets.setdefault(key, []).append(place)
    out: dict[int, Item] = {}
    for places in sets.values():
        calls = [place for place in places if not is_end(entries[place])]
        end = next((entries[place] for place in reversed(places) if is_end(entries[place])), None)
        if end is None and (p2p[places[0]] or len(calls) == 1):
            out |= {place: entries[place] for place in calls}
        elif not calls or (end is not None and p2p[places[0]]):
            out |= _in_state_of(end, entries, calls or places[-1:])
        else:
            out[calls[0]] = _merged([entries[place] for place in calls], end)
    return [out[place] for place in sorted(out)]


def _in_state_of(end: Item | None, entries: list[Item], places: list[int]) -> dict[int, Item]:
    state = {key: end[key] for key in _STATE if key in end} if end is not None else {}
    return {place: {**entries[place], **state} for place in places}


def _merged(calls: list[Item], end: Item | None) -> Item:
    """One call with the tensors of all, under the common name of them or ``coalesced``."""
    names = {str(call["profiling_name"]) for call in calls}
    merged = {**calls[0], **{key: end[key] for key in _STATE if end is not None and key in end}}
    for key in _TENSORS:
        merged[key] = [item for call in calls if isinstance(call.get(key), (list, tuple)) for item in call[key]]
    if len(names) > 1:
        merged["profiling_name"] = f"nccl:{COALESCED}"
    return merged
