"""Text from evidence inside Markdown: it stays text, whatever is in it."""

from __future__ import annotations

import re

from ddiag.reporters.words import clean

_SPECIAL = re.compile(r"[\\`*\[<|~]|(?<![^\W_])_|_(?![^\W_])")
"""What could begin markup; an underscore inside a word cannot (`num_workers`)."""
_BULLET = re.compile(r"^(\s*\d*)([#>+.)-])(?=\s|$)")
_ADDRESS = re.compile(r"@(?=\w)")


def escaped(words: str) -> str:
    """*words* as literal text: no markup, no table cell, no mention; `code` in ticks stays code."""
    parts = clean(words).split("`")
    if len(parts) % 2 == 0:
        return _literal(clean(words))
    return "".join(_code(part) if index % 2 else _literal(part) for index, part in enumerate(parts))


def _code(words: str) -> str:
    return "`" + words.replace("|", "\\|") + "`"


def _literal(words: str) -> str:
    words = _SPECIAL.sub(lambda found: "\\" + found[0], words)
    return _ADDRESS.sub("@\u200b", _BULLET.sub(r"\1\\\2", words))
