"""Reading damaged text: what a strict decoder refuses is repaired, salvaged field by field, or counted as dropped.

Only the few chunks that fail come here, so clarity beats speed; still linear in the size of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ddiag.ingest.events import ArrayDecoder, CollectiveArgs, Event, MemoryArgs, one_event, raw_array

T = TypeVar("T")
DECODE_ERRORS = (msgspec.DecodeError, RecursionError)
"""``DecodeError`` covers wrong types as well; a bomb of brackets ends in ``RecursionError``."""

BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
_STRING_OR_NOT_FINITE = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"|[-+]?\b(?:nan|inf|infinity)\b', re.IGNORECASE | re.DOTALL
)
LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""Half of a UTF-16 pair: JSON allows it, UTF-8 has no letter for it."""
_CONTROL_TO_SPACE = bytes(32 if code < 32 else code for code in range(256))
_MAX_NESTED_PIECES = 8
"""An event is rejoined from at most this many pieces when its arguments hold objects in lists."""


def repair(text: bytes) -> bytes:
    """Make *text* decodable where only its spelling is wrong: bad UTF-8, control characters, NaN, half letters."""
    clean = text.decode("utf-8", "replace").encode()
    clean = LONE_SURROGATE.sub(rb"\\ufffd", clean.translate(_CONTROL_TO_SPACE))
    return _STRING_OR_NOT_FINITE.sub(_null_unless_string, clean)


def _null_unless_string(match: re.Match[bytes]) -> bytes:
    found = match.group()
    return found if found.startswith(b'"') else b"null"


def decode_tolerantly(items: bytes) -> tuple[list[Event], int]:
    """Decode *items* (events separated by commas, no brackets): the events, and how many were dropped."""
    clean = repair(items)
    try:
        return ArrayDecoder()(b"[" + clean + b"]"), 0
    except DECODE_ERRORS:
        return _each(clean, _one)


def decode_each(items: bytes, one: Callable[[bytes], T | None]) -> tuple[list[T], int]:
    """The same for events of another shape: *one* decodes a single event or gives None."""
    return _each(repair(items), one)


def _each(clean: bytes, one: Callable[[bytes], T | None]) -> tuple[list[T], int]:
    try:
        pieces = [bytes(raw) for raw in raw_array.decode(b"[" + clean + b"]")]
    except DECODE_ERRORS:
        return _resynchronise(clean, one)
    events = [event for piece in pieces if (event := one(piece)) is not None]
    return events, len(pieces) - len(events)


def _one(text: bytes) -> Event | None:
    try:
        return one_event.decode(text)
    except DECODE_ERRORS:
        return _salvage(text)


def _salvage(text: bytes) -> Event | None:
    """Keep the usable fields of one event whose fields have unexpected types."""
    try:
        fields = msgspec.json.decode(text)
    except DECODE_ERRORS:
        return None
    if not isinstance(fields, dict):
        return None
    kept: dict[str, object] = {
        key: value
        for key, value in fields.items()
        if key != "args" and isinstance(value, (str, int, float)) and not isinstance(value, bool)
    }
    for key in ("name", "ph", "cat"):
        if key in kept:
            kept[key] = str(kept[key])
    if "ph" not in kept and "ts" in kept and "dur" in kept:
        kept["ph"] = "X"
    if isinstance(arguments := fields.get("args"), dict):
        kept["args"] = _usable_args(arguments)
    try:
        event: Event = msgspec.convert(kept, one_event.type)
    except (msgspec.ValidationError, RecursionError):
        return None
    return event


def _usable_args(arguments: dict[str, object]) -> dict[str, object]:
    wanted = {*CollectiveArgs.__struct_encode_fields__, *MemoryArgs.__struct_encode_fields__} - {
        "Input Dims",
        "Input type",
    }
    usable: dict[str, object] = {
        key: value for key, value in arguments.items() if key in wanted and isinstance(value, (str, int, float))
    }
    for key in ("Input Dims", "Input type"):
        if isinstance(arguments.get(key), list):
            usable[key] = msgspec.Raw(msgspec.json.encode(arguments[key]))
    return usable


def _resynchronise(text: bytes, one: Callable[[bytes], T | None]) -> tuple[list[T], int]:
    """Text that is not JSON throughout: decode what stands between two event boundaries, skip the rest."""
    events: list[T] = []
    dropped = 0
    pieces = _pieces(text)
    at = 0
    while at < len(pieces):
        event, used = _join_and_decode(pieces, at, one)
        if event is None:
            dropped += 1
        else:
            events.append(event)
        at += used
    return events, dropped


def _pieces(text: bytes) -> list[bytes]:
    start = text.find(b"{")
    return [] if start < 0 else BETWEEN_EVENTS.split(text[start + 1 :].rstrip(b" \t\r\n,]").removesuffix(b"}"))


def _join_and_decode(pieces: list[bytes], at: int, one: Callable[[bytes], T | None]) -> tuple[T | None, int]:
    """The event that begins at piece *at*, rejoined from as many pieces as its nested objects tore it into."""
    text = b"{" + pieces[at] + b"}"
    for used in range(1, _MAX_NESTED_PIECES + 1):
        event = one(text)
        if event is not None:
            return event, used
        if at + used >= len(pieces):
            break
        text = text + b",{" + pieces[at + used] + b"}"
    return None, 1
