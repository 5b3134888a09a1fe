"""What c10's log lines have in common: tags of process groups, and whose line it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddiag.ingest.logs.envelope import MOST_RANKS
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Value

TAG = re.compile(
    r"\[PG(?: ID)? (?P<id>\d+)(?: PG GUID (?P<guid>[^ (\]]*))?\s?(?:\((?P<desc>[^)]*)\))? ?Rank (?P<rank>\d+)\]"
)
"""``[PG 0 Rank 1]`` (2.3), ``[PG 0 (default_pg) Rank 1]`` (2.4), ``[PG ID 0 PG GUID 0(default_pg) Rank 1]`` (2.5)."""
PLAIN = re.compile(r"\[Rank (\d+)\]|(?<!\w)Rank (\d+)(?= using)")
"""A rank inside the process group."""
HEADER = re.compile(r"\[[VIWEF](?:\d{3,4} [\d:.]+)? ?[\w./-]+:\d+\]")
DEFAULT = ("", "0", "default_pg")
_UNNAMED = ("", "undefined")


@dataclass(frozen=True)
class Tag:
    """A process group as a line names it."""

    group: str = ""
    """Its global name (GUID) where printed, else its number in that process."""
    desc: str = ""
    rank: int | None = None

    @property
    def is_default(self) -> bool:
        """The group of all ranks, or none said."""
        return self.desc == "default_pg" or (self.group in DEFAULT and self.desc in _UNNAMED)

    @property
    def fields(self) -> dict[str, Value]:
        return {"group": self.group, "group_desc": self.desc, "group_rank": self.rank}


def tag_in(text: str) -> Tag:
    """The group tag of a line, or just the rank in it."""
    if found := TAG.search(text):
        desc = found["desc"] or ""
        return Tag(found["guid"] or found["id"], "" if desc in _UNNAMED else desc, rank_number(found["rank"]))
    plain = PLAIN.search(text)
    return Tag(rank=rank_number(plain[1] or plain[2]) if plain else None)


def rank_of(line: Line, tag: Tag) -> int | None:
    """The global rank: as the envelope says; a rank of the default group is one too."""
    if line.rank is not None:
        return line.rank
    return tag.rank if tag.is_default else None


def ranks_in(text: str) -> list[int]:
    """``0, 1, 4-6`` as numbers."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:\s*-\s*(\d+))?", text):
        found += range(int(first), min(int(last or first), MOST_RANKS) + 1)
    return [rank for rank in found if rank < MOST_RANKS]


def rank_number(said: str) -> int | None:
    """A rank as printed; None for what cannot be one."""
    number = int(said)
    return number if number < MOST_RANKS else None
