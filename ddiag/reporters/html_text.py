"""Text and data on their way into HTML: escaping, inline code, safe JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from markupsafe import Markup, escape

from ddiag.plots.chart import shorten
from ddiag.plots.numbers import percent, short, size, span, thousands
from ddiag.reporters.hang_view import ranks_words
from ddiag.reporters.words import lacks, number, shown_unit
from ddiag.rulekit.cost import name_ranks

_CODE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"^(ddiag|python3?|torchrun|nvidia-smi|rocm-smi|export|NCCL_\w+=)\b")
_WORD = re.compile(r"[a-z]+(-[a-z]+)*(?=[ ,;]|: |$)")
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def inline(text: str) -> Markup:
    """Escaped text in which `backticks` become code and long names may break."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(harmless(text)))))


def sentence(text: str) -> Markup:
    """:func:`inline`, beginning with a capital when the first word is a plain one, and no command's."""
    plain = _WORD.match(text) and not _COMMAND.match(text)
    return inline(text[:1].upper() + text[1:] if plain else text)


def safe_json(text: str) -> Markup:
    """JSON text for a script element: nothing in it can end the element or a JavaScript line."""
    return Markup("".join(_UNSAFE.get(c, c) for c in text))


def script_json(value: Any) -> Markup:
    """A plain Python value as JSON for a script element; lone surrogates and NaN cannot occur in it."""
    return safe_json(json.dumps(value, allow_nan=False, separators=(",", ":")))


def raw(text: str) -> Markup:
    """Our own style sheets and scripts, as they are."""
    return Markup(text)


def copy_text(text: str) -> str:
    """What the copy button gives: the one `command` in the text if there is exactly one, else all of it."""
    commands = [part for part in _CODE.findall(text) if _COMMAND.match(part)]
    return commands[0] if len(commands) == 1 else text.replace("`", "")


def is_command(text: str) -> bool:
    """True when the whole text is to be typed into a shell."""
    return bool(_COMMAND.match(text)) and "\n" not in text and not text.rstrip().endswith(".")


def evidence_value(value: float | int | str | None, unit: str) -> str:
    """A value or limit of an evidence table."""
    return number(value, unit) or "–"


def harmless(value: object) -> object:
    """Every text the templates print passes here: no control characters, nothing that turns the writing direction."""
    return _INVISIBLE.sub(" ", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def clock(wall_ns: int) -> str:
    """``02:11:07 UTC``"""
    return f"{datetime.fromtimestamp(wall_ns / 1e9, tz=timezone.utc):%H:%M:%S} UTC"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "inline": inline,
    "lacks": lacks,
    "sentence": sentence,
    "safe_json": safe_json,
    "script_json": script_json,
    "raw": raw,
    "copy_text": copy_text,
    "is_command": is_command,
    "shown_unit": shown_unit,
    "evidence_value": evidence_value,
    "ms": short,
    "shorten": shorten,
    "percent": percent,
    "rank_words": name_ranks,
    "ranks_words": ranks_words,
    "clock": clock,
    "span": span,
    "size": size,
    "count": lambda value: thousands(value, 0),
}
