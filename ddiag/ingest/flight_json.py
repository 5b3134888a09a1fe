"""JSON of Flight Recorder dumps and RAS reports: strict and fast while sound, entry by entry where it is cut off."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from ddiag.ingest.flight_pickle import Plain
from ddiag.ingest.tolerant import DECODE_ERRORS, repair
from ddiag.ingest.trace import UnusableError

_ENTRIES = re.compile(r'"entries"\s*:\s*\[|^\s*\[')
_PAIR = re.compile(r'"(version|pg_config|pg_status|rank|nccl_comm_state|world_size)"\s*:\s*')
_BETWEEN = re.compile(r"[\s,]*")


def json_objects(data: bytes, damage: str) -> Plain:
    """The value *data* spells; *damage* is what the unpacking met. Raises UnusableError when nothing can be used."""
    try:
        return Plain(msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf").rstrip(b"\0 \t\r\n")), damage)
    except DECODE_ERRORS:
        clean = repair(data.removeprefix(b"\xef\xbb\xbf")).decode("utf-8", "replace")
    try:
        return Plain(msgspec.json.decode(clean.encode()), damage)
    except DECODE_ERRORS as error:
        return _salvaged(clean, damage or f"the JSON is cut off or damaged ({error})")


def _salvaged(text: str, damage: str) -> Plain:
    """Whole entries and the top-level values beside them."""
    decoder = json.JSONDecoder()
    found: dict[str, Any] = {}
    start = _ENTRIES.search(text)
    end = len(text)
    if start is not None:
        found["entries"], end = _items(decoder, text, start.end())
        if text.lstrip().startswith("["):
            return Plain(found["entries"], damage)
    outside = text[: start.start()] + "\n" + text[end:] if start is not None else text
    for match in _PAIR.finditer(outside):
        try:
            found.setdefault(match.group(1), decoder.raw_decode(outside, match.end())[0])
        except (ValueError, RecursionError):
            break
    if not found:
        raise UnusableError(damage)
    return Plain(found, damage)


def _items(decoder: json.JSONDecoder, text: str, at: int) -> tuple[list[Any], int]:
    """Values of the list that begins at *at*, and where they end."""
    items: list[Any] = []
    while at < len(text):
        gap = _BETWEEN.match(text, at)
        at = gap.end() if gap is not None else at
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        items.append(item)
    return items, at
