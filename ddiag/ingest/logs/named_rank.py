"""Who wrote a line, where its envelope does not say so but the line does."""

from __future__ import annotations

import re

from ddiag.ingest.logs.line import Line

_PREFIX = re.compile(r"\[rank(\d+)\]:?")
_WORD = re.compile(r"\b[Rr]ank\s*[=:#]?\s?(\d+)\b")


def rank_of(line: Line, *, words: bool = False) -> int | None:
    """Global rank by the envelope, torch's ``[rank3]:`` anywhere in the line or, with *words*, the only rank named."""
    if line.rank is not None:
        return line.rank
    for pattern in (_PREFIX, _WORD)[: 2 if words else 1]:
        named = {int(number) for number in pattern.findall(line.raw)}
        if len(named) == 1:
            return named.pop()
    return None
