"""Names (``.names``): one JSON string per line; a record refers to a name by its line number, counted from 0.

A name is written before the first record that uses it. The last line of a killed process may be cut short and is
then left out.
"""

from __future__ import annotations

import json

MAX_NAMES = 65_000
"""Bounds the recorder's memory, and lets a dtype's id fit 16 bits."""
MAX_CHARACTERS = 512


def encode(text: str) -> bytes:
    """One line."""
    return json.dumps(text[:MAX_CHARACTERS]).encode("ascii") + b"\n"


def decode(data: bytes) -> list[str]:
    """Names by id."""
    *lines, _unfinished = data.split(b"\n")
    return [_name(line) for line in lines]


def _name(line: bytes) -> str:
    try:
        return str(json.loads(line))
    except ValueError:
        return "?"
