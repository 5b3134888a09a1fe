"""RAS reports as JSON (``ncclras -f json``, NCCL 2.28.7 and later): one or several in a file, and monitored events."""

from __future__ import annotations

import json
import re

from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.flight_dump import Item
from ddiag.ingest.ras_report import records
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.trace import UnusableError

NAME = "ras"
_KEYS = re.compile(rb'"(?:communicators_count|missing_ranks_count|collective_counts)"\s*:')
_MONITORED = re.compile(rb'"event"\s*:\s*"PEER_')
_COMMA = re.compile(r'([\d"}\]el])(\s*\n\s*)("[^"\n]*"\s*:)')
"""NCCL 2.28.9 leaves out the comma before ``status`` of a missing rank."""


def matches(head: bytes, name: str) -> bool:
    """JSON with the keys only RAS writes."""
    bare = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return bare[:1] in (b"{", b"[") and (_KEYS.search(bare) is not None or _MONITORED.search(bare) is not None)


def read(source: Source, text: PlainText) -> Clues:
    """Raises UnusableError when nothing in it can be decoded."""
    parts = []
    while chunk := text.read(16 << 20):
        parts.append(chunk)
    whole_text = _COMMA.sub(r"\1,\2\3", b"".join(parts).decode("utf-8", "replace"))
    documents, damage = _documents(whole_text)
    damage = text.damage or damage
    if not documents:
        raise UnusableError(damage or "no RAS report in it")
    found = [record for number, one in enumerate(documents, 1) for record in records(one, number, source.label)]
    return Clues(source, NAME, to_tables(found), read=len(documents), notes=(damage,) if damage else ())


def _documents(text: str) -> tuple[list[Item], str]:
    """The objects that follow each other in *text*, and what is wrong with the rest."""
    decoder = json.JSONDecoder()
    found: list[Item] = []
    at, end = 0, len(text)
    while (at := _start(text, at)) < end:
        try:
            one, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            return found, f"the JSON is cut off or damaged ({str(error).splitlines()[0]})"
        found += [item for item in (one if isinstance(one, list) else [one]) if isinstance(item, dict)]
    return found, ""


def _start(text: str, at: int) -> int:
    places = [place for mark in "{[" if (place := text.find(mark, at)) >= 0]
    return min(places, default=len(text))
