"""The rank a file name states, where the content does not say."""

from __future__ import annotations

import re

_SEPARATOR = r"[-_. =]?"
_BEFORE = r"(?:^|[^a-z0-9])"
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        _BEFORE + r"global" + _SEPARATOR + r"rank" + _SEPARATOR + r"(\d{1,7})(?!\d)",
        _BEFORE + r"(?:trace" + _SEPARATOR + r")?rank" + _SEPARATOR + r"(\d{1,7})(?!\d)",
        r"(?<![a-z])r(\d{1,7})(?=[._-]|$)",
        _BEFORE + r"worker" + _SEPARATOR + r"(\d{1,7})(?!\d)",
        r"_dump_(\d{1,7})(?=\.|$)",
    )
)
_FOLDER = re.compile(r"(?:global)?[-_]?(?:rank|worker)[-_=]?(\d{1,7})", re.IGNORECASE)
_LOCAL = re.compile(r"local" + _SEPARATOR + r"rank", re.IGNORECASE)


def rank_from_name(name: str, folder: str = "") -> int | None:
    """Rank in ``rank3.json``, ``rank-70.….json.gz``, ``trace_8_rank_1.json``, ``worker0.….pt.trace.json``, ``r12.gz``.

    The name decides before the *folder* that holds the file, which must be called nothing but the rank
    (``rank_3/trace.json``). Host names with digits (``gpu-r12n3``, ``node17``) and local ranks are not ranks.
    """
    bare = _LOCAL.sub("local", name)
    for pattern in _PATTERNS:
        matches = pattern.findall(bare)
        if matches:
            return int(matches[-1])
    match = _FOLDER.fullmatch(folder)
    return int(match.group(1)) if match is not None else None
