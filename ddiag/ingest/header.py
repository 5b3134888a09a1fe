"""The metadata around the events: strict JSON where possible, key by key where the text is damaged or cut."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from ddiag.ingest.tolerant import DECODE_ERRORS, repair

_KEY = re.compile(r'\s*,?\s*"((?:[^"\\]|\\.)*)"\s*:\s*')
_MAX_REPAIR_BYTES = 64 * 1024
"""The real tail is short; longer candidates begin somewhere in the middle of the events."""
_DECODER = json.JSONDecoder(strict=False)


def parse_object(text: bytes) -> dict[str, Any]:
    """The keys and values of a JSON object that may end anywhere after a value (no closing brace needed)."""
    whole = text.rstrip(b" \t\r\n,")
    try:
        found = msgspec.json.decode(whole + b"}")
        return found if isinstance(found, dict) else {}
    except DECODE_ERRORS:
        return _key_by_key(repair(text).decode())


def parse_tail(text: bytes, *, bare: bool) -> dict[str, Any] | None:
    """What follows the array of events, or None when that is not the proper rest of the file.

    *bare*: the array is the whole file, so nothing may follow it.
    """
    rest = text.strip(b" \t\r\n\0")
    if bare or not rest:
        return {} if bare and not rest else None
    if rest == b"}":
        return {}
    if not rest.startswith(b",") or not rest.endswith(b"}"):
        return None
    body = b"{" + rest[1:]
    try:
        found = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return _repaired(body)
    return found if isinstance(found, dict) else None


def _repaired(text: bytes) -> dict[str, Any] | None:
    if len(text) > _MAX_REPAIR_BYTES:
        return None
    try:
        found = msgspec.json.decode(repair(text))
    except DECODE_ERRORS:
        return None
    return found if isinstance(found, dict) else None


def _key_by_key(text: str) -> dict[str, Any]:
    """Top-level pairs up to the first that cannot be read."""
    found: dict[str, Any] = {}
    at = text.find("{") + 1
    while at and (match := _KEY.match(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            return found
        found[match.group(1)] = value
    return found
