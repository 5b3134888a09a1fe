"""Reports of ``ddiag doctor``: what a node was like, as node facts and settings."""

from __future__ import annotations

from collections.abc import Iterator

from ddiag.errors import InputError
from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.sniff import begins_with_key
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.trace import UnusableError
from ddiag.model.incident import NodeFact, Seen, Setting
from ddiag.schema.node import MARK, NodeReport, from_json

MOST_BYTES = 16 << 20
_SETTINGS = {"env": "env", "package.version": "package"}
"""Facts of named things that are settings: fact key -> kind of setting."""


def matches(head: bytes, _name: str) -> bool:
    """A JSON object whose first key is the report's mark."""
    return begins_with_key(head, MARK)


def read(source: Source, text: PlainText) -> Clues:
    """The report as clues of its host."""
    try:
        report = from_json(text.read(MOST_BYTES), source.label)
    except InputError as error:
        raise UnusableError(str(error).removeprefix(f"{source.label}: ")) from error
    notes = tuple(f"{one.what}: {one.why}" for one in report.could_not)
    return Clues(
        source,
        "doctor",
        to_tables(_records(report, source.label)),
        host=report.host,
        read=len(report.facts),
        notes=notes,
    )


def _records(report: NodeReport, label: str) -> Iterator[Seen]:
    for fact in report.facts:
        if fact.key in _SETTINGS and fact.device is not None:
            yield Setting(_SETTINGS[fact.key], fact.device, str(fact.value), host=report.host, source=label)
            continue
        number = float(fact.value) if isinstance(fact.value, (int, float)) else None
        yield NodeFact(fact.key, str(fact.value), number, report.host, fact.device, report.taken_ns, label)
