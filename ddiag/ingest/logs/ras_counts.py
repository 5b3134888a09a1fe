"""How many calls each rank of a communicator launched, as RAS groups and prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Standing, Value

_NAMED = re.compile(
    r"\bRank (?P<rank>\d+)(?: has (?:launched up to operation (?P<count>\d+)|(?P<none>not launched any operations)))?"
)
_SEVERAL = re.compile(
    r"(?P<ranks>\d+) ranks have (?:launched up to operation (?P<count>\d+)|not launched any operations)"
)


@dataclass(frozen=True)
class Counts:
    """Calls launched; a count that many ranks share is printed without saying which ranks."""

    named: Mapping[int, int]
    """rank -> calls, for the ranks that are named"""
    others: int
    """How many ranks are not named."""
    others_launched: int | None
    """Calls of the largest unnamed set."""
    of_rank: Mapping[int, int]
    """The same for all ranks whose count is known or follows."""

    def fields(self) -> dict[str, Value]:
        """As fields of an event."""
        counts = [*self.named.values(), *([] if self.others_launched is None else [self.others_launched])]
        fewest = min(counts, default=0)
        behind: list[Value] = [rank for rank, count in sorted(self.named.items()) if count == fewest]
        return {
            "launched": {str(rank): count for rank, count in self.named.items()},
            "others": self.others,
            "others_launched": self.others_launched,
            "behind": behind if fewest < max(counts, default=0) else [],
            "lag": max(counts, default=0) - fewest,
        }


def counts_of(texts: Sequence[str], size: int | None) -> Counts:
    """The counts that the lines of one operation state; *size* is how many ranks the communicator has."""
    named: dict[int, int] = {}
    sets: list[list[int]] = []
    for text in texts:
        if several := _SEVERAL.search(text):
            sets.append([int(several["ranks"]), int(several["count"] or 0), 0])
        elif found := _NAMED.search(text):
            if found["count"] is not None or found["none"] is not None:
                named[int(found["rank"])] = int(found["count"] or 0)
            elif sets:
                named[int(found["rank"])] = sets[-1][1]
                sets[-1][2] += 1
    unnamed = [(ranks, count) for ranks, count, told in sets if told == 0]
    of_rank = dict(named)
    if len(unnamed) == 1 and size is not None and unnamed[0][0] + len(named) == size:
        of_rank |= {rank: unnamed[0][1] for rank in range(size) if rank not in named}
    largest = max(unnamed, default=(0, 0))
    return Counts(named, sum(ranks for ranks, _ in unnamed), largest[1] if unnamed else None, of_rank)


def reached(comm: str, size: int, rank: int | None = None, launched: int | None = None) -> Standing:
    """How far RAS says that a rank of the whole job's communicator came; without rank: all of them the same."""
    return Standing(group=comm, ranks=tuple(range(size)), rank=rank, last_enqueued=launched, origin="ras")
