"""Which rank wrote a dump, and on which host: the content decides before the file's name, which may lie."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddiag.ingest.file_rank import rank_from_name
from ddiag.ingest.flight_dump import Dump, DumpGroup, whole
from ddiag.ingest.flight_entries import Entries

_INTEGER = re.compile(r"(?<!\d)\d{1,7}(?!\d)")
_SUFFIX = re.compile(r"\.(?:json|pkl|pickle|bin|dat|dump|txt|log|fr|trace|gz|zst|zip)$", re.IGNORECASE)
_NO_HOST = re.compile(
    r"(?:nccl|comm|lib|fr|flight|recorder|trace|dump|debug|info|global|rank|worker|host|attempt|run|job|restart|file|tmp)"
    r"[-_.= ]?(?=[-_.= ]|\d|$)",
    re.IGNORECASE,
)
_HOST = re.compile(r"[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*", re.IGNORECASE)


def rank_of(dump: Dump, entries: Entries, name: str, folder: str = "") -> int | None:
    """Global rank of the process; None when neither the content nor the name decides."""
    if dump.rank is not None:
        return dump.rank
    possible = candidates(dump, entries)
    if possible is not None and len(possible) == 1:
        return next(iter(possible))
    named = rank_from_name(name, folder)
    if named is not None and (possible is None or named in possible):
        return named
    numbers = [int(number) for number in _INTEGER.findall(_stem(name))]
    fitting = [number for number in numbers if possible is None or number in possible]
    if fitting and fitting[-1] == numbers[-1]:
        return fitting[-1]
    return fitting[0] if len(set(fitting)) == 1 else None


def candidates(dump: Dump, entries: Entries) -> set[int] | None:
    """Ranks that can have written it: members of all its groups, and the sender or receiver it is itself."""
    possible: set[int] | None = None
    for group in dump.groups.values():
        if group.ranks is not None:
            possible = set(group.ranks) if possible is None else possible & set(group.ranks)
    own = _own_rank(dump, entries)
    own = _rank_of_communicator(dump) if own is None else own
    if own is not None and (possible is None or own in possible):
        return {own}
    return possible or None


def _own_rank(dump: Dump, entries: Entries) -> int | None:
    """``send 2->3`` was recorded by group rank 2."""
    for name, call in entries.calls.items():
        if call.own is not None:
            return _global(dump.groups, entries.groups[entries.names.index(name)], call.own)
    return None


def _global(groups: Mapping[str, DumpGroup], name: str, group_rank: int) -> int | None:
    known = groups.get(name)
    if known is None or known.ranks is None:
        return group_rank if name == "0" else None
    return known.ranks[group_rank] if group_rank < len(known.ranks) else None


def _rank_of_communicator(dump: Dump) -> int | None:
    """NCCL's rank in the communicator of the whole job."""
    world = world_size(dump)
    ranks = {
        whole(one.get("rank")) for one in dump.communicators if world is not None and whole(one.get("nranks")) == world
    }
    return ranks.pop() if len(ranks) == 1 else None


def world_size(dump: Dump) -> int | None:
    """Size of the default group, where it is known."""
    for group in dump.groups.values():
        if group.ranks is not None and (group.desc == "default_pg" or group.name == "0"):
            return len(group.ranks)
    return None


def host_of(name: str) -> str | None:
    """The host in ``nccl_trace_gpu-a17_rank_3`` or ``node12.cluster_5.pkl``; None when the name holds no host."""
    for part in re.split(r"[_\s=]+", _stem(name)):
        bare = _NO_HOST.sub("", part).strip("-.")
        if _HOST.fullmatch(bare) and re.search(r"\d", bare) and not _NO_HOST.match(part):
            return bare
    return None


def _stem(name: str) -> str:
    while _SUFFIX.search(name):
        name = _SUFFIX.sub("", name)
    return name
