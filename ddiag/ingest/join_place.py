"""One name for each host, and the host of files that do not say theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from ddiag.ingest.clues import Clues

_ADDRESS = re.compile(r"[\d.]+|[0-9a-fA-F:]*:[0-9a-fA-F:]*")


def short_host(name: str) -> str:
    """``gn12.cluster.local`` and ``gn12`` are one host; addresses stay whole."""
    return name if _ADDRESS.fullmatch(name) else name.partition(".")[0]


def short_names(table: pl.DataFrame) -> pl.DataFrame:
    """*table* with short host names, where it has hosts."""
    if "host" not in table.columns:
        return table
    names = {name: short_host(name) for name in table["host"].drop_nulls().unique().to_list()}
    return table if all(old == new for old, new in names.items()) else table.with_columns(pl.col("host").replace(names))


def hosts_of_files(clues: Sequence[Clues]) -> Mapping[int, str]:
    """Place of a file in *clues* -> host, for files without one whose name or folder holds a host others speak of.

    A file of one rank or node is often called by it: ``gn12.dmesg``, ``logs/gn12/rank10.log``, ``smi-gn12.txt``.
    """
    known = {short_host(name) for one in clues for name in _stated(one)}
    found: dict[int, str] = {}
    for place, one in enumerate(clues):
        if one.host is not None or any(True for _ in _stated(one)):
            continue
        named = [host for host in known if _holds(one.source.label, host)]
        if named:
            found[place] = max(named, key=len)
    return found


def _stated(clues: Clues) -> Iterable[str]:
    """Hosts that the file's own records name as where they come from."""
    if clues.host is not None:
        yield clues.host
    for table in clues.tables.values():
        if "host" in table.columns:
            yield from table["host"].drop_nulls().unique().to_list()


def _holds(label: str, host: str) -> bool:
    """*host* stands in the path as a word of its own."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(host)}(?![A-Za-z0-9])", label) is not None
