"""torchelastic's ``error.json``: what a worker under ``@record`` left behind when it died."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.logs.traceback import exception_in
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.trace import UnusableError
from ddiag.model.incident import EPOCH, Event

NAME = "error_file"
_HEAD = re.compile(rb'\A\s*\{\s*"(?:message|timestamp)"\s*:')
_OURS = re.compile(rb'"(?:extraInfo|py_callstack|errorCode)"|"message"\s*:.*"timestamp"\s*:\s*"?\d{9,}', re.DOTALL)
_PLACE = re.compile(r"attempt_(?P<attempt>\d+)[/\\](?P<local>\d+)[/\\][^/\\]*$")
MOST_BYTES = 16 << 20


def matches(head: bytes, name: str) -> bool:
    return bool(_HEAD.match(head)) and bool(_OURS.search(head))


def read(source: Source, text: PlainText) -> Clues:
    """One exception; its local rank is in the path that torchrun chose."""
    try:
        content = msgspec.json.decode(text.read(MOST_BYTES))
    except msgspec.DecodeError as error:
        raise UnusableError(f"an error file of torchelastic that is cut off or damaged ({error})") from error
    event = _event(content if isinstance(content, dict) else {}, source)
    return Clues(source, NAME, to_tables([event]), read=1)


def _event(content: Mapping[str, object], source: Source) -> Event:
    inner = content.get("message")
    message = inner.get("message") if isinstance(inner, dict) else inner
    extra = inner.get("extraInfo") if isinstance(inner, dict) else None
    more = extra if isinstance(extra, dict) else {}
    stamp = str(more.get("timestamp") or content.get("timestamp") or "")
    kind, _, what = str(message or "unknown error").partition(": ")
    found = exception_in(str(more.get("py_callstack") or "").splitlines())
    event = found or Event("python.exception", {"type": kind, "message": what, "frames": [], "caused_by": None})
    place = _PLACE.search(source.label)
    fields = {**event.fields, "local_rank": int(place["local"]) if place else None, "error_file": True}
    ts_ns = int(float(stamp) * 1e9) if re.fullmatch(r"\d{9,10}(?:\.\d+)?", stamp) else None
    words = event.text or f"{kind}: {what}"
    return replace(event, fields=fields, ts_ns=ts_ns, clock=EPOCH if ts_ns else "", text=words, source=source.label)
