"""One redacted archive of everything known of a job, which reads back with the same diagnosis."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ddiag.errors import InputError
from ddiag.ingest.clues import Clues
from ddiag.ingest.discover import discover, why_unreadable
from ddiag.ingest.flight_pickle import plain_objects
from ddiag.ingest.sniff import HEAD_BYTES, begins_with_key, sniff
from ddiag.ingest.sources import STORAGE_ERRORS, PlainText, Source, open_text
from ddiag.ingest.trace import UnusableError
from ddiag.schema.redaction import Redactor

MANIFEST = "bundle.json"
MARK = "ddiag_bundle"
BUNDLE_FORMAT = 1
MOST_BYTES = 4 << 30
"""Of one file, unpacked: a larger one is left out (and said to be)."""
_LINE_BYTES = 8 << 20
"""Longest piece of text redacted at a time; traces in one line are cut at a comma."""
_BINARY_OURS = (".ring", ".native.ring", ".steps")
"""Our own numbers: no text is in them."""


@dataclass(frozen=True)
class Item:
    """One file of the bundle, or one that is left out."""

    source: Source
    name: str
    """Path in the archive."""
    how: str
    """text, numbers (copied as they are), pickle, or empty when left out."""
    why_not: str = ""


def plan(paths: Sequence[str]) -> tuple[Item, ...]:
    """What would go in: every file that ddiag can read and redact. Raises InputError when there is none."""
    found = discover(paths)
    names = _archive_names(found.sources)
    items = tuple(_item(source, names[source.label]) for source in found.sources)
    if not any(item.how for item in items):
        unreadable = [f"{path}: {why}" for path, why in found.unreadable]
        raise InputError("\n".join(["nothing to bundle:", *(f"  {line}" for line in unreadable)]) if unreadable else
                         f"nothing to bundle in {', '.join(paths) or 'no evidence'}")  # fmt: skip
    return items


def _archive_names(sources: Sequence[Source]) -> dict[str, str]:
    """Short, distinct paths: the deepest common folder is cut off, members of archives lie in a folder of its name."""
    labels = {
        source.label: PurePosixPath(source.label.replace("\\", "/").replace("!", ".contents/")) for source in sources
    }
    parts = [path.parts[:-1] for path in labels.values()]
    common = 0
    while parts and all(len(one) > common and one[common] == parts[0][common] for one in parts):
        common += 1
    common = max(common - 1, 0) if common else 0
    return {label: "/".join(["evidence", *path.parts[common:]]) for label, path in labels.items()}


def _item(source: Source, name: str) -> Item:
    if source.name.endswith(_BINARY_OURS):
        return Item(source, name, "numbers")
    if source.text_bytes > MOST_BYTES:
        return Item(source, name, "", f"larger than {MOST_BYTES >> 30} GiB")
    try:
        with open_text(source) as text:
            head = text.peek(HEAD_BYTES)
    except STORAGE_ERRORS as error:
        return Item(source, name, "", why_unreadable(error))
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return Item(source, name, "pickle")
    if b"\0" in head[:4096] or not head:
        return Item(source, name, "", sniff(head).why or "binary data that cannot be redacted")
    return Item(source, name.removesuffix(".gz").removesuffix(".zst"), "text")


@dataclass(frozen=True)
class Bundled:
    """What was written."""

    kept: tuple[Item, ...]
    left_out: tuple[Item, ...]
    replaced: dict[str, int]


def write_bundle(items: Sequence[Item], target: Path, redactor: Redactor, told: Mapping[str, object]) -> Bundled:
    """Write the archive. *told*: what else is known (state of this node, the diagnosis), kept beside the evidence."""
    kept, left_out = [], [item for item in items if not item.how]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for item in items:
            if item.how:
                why_not = _add(archive, item, redactor)
                if why_not:
                    left_out.append(replace(item, how="", why_not=why_not))
                else:
                    kept.append(item)
        about = {key: redactor.value(value) for key, value in told.items()}
        bundled = Bundled(tuple(kept), tuple(left_out), {key: n for key, n in redactor.counts.items() if n})
        archive.writestr(MANIFEST, _manifest(bundled, redactor, about))
    return bundled


def _add(archive: zipfile.ZipFile, item: Item, redactor: Redactor) -> str:
    """Put *item* in; returns why it is not there."""
    try:
        pieces = list(_content(item, redactor)) if item.how == "pickle" else _content(item, redactor)
    except UnusableError as error:
        return str(error)
    except STORAGE_ERRORS as error:
        return why_unreadable(error)
    try:
        with archive.open(redactor.text(item.name), "w", force_zip64=True) as out:
            for piece in pieces:
                out.write(piece)
    except STORAGE_ERRORS as error:
        return f"only in part: {why_unreadable(error)}"
    return ""


def _manifest(bundled: Bundled, redactor: Redactor, about: Mapping[str, object]) -> str:
    body = {
        MARK: BUNDLE_FORMAT,
        "files": [redactor.text(item.name) for item in bundled.kept],
        "left_out": [
            {"name": redactor.text(item.name), "why": redactor.text(item.why_not)} for item in bundled.left_out
        ],
        "replaced": bundled.replaced,
        **about,
    }
    return json.dumps(body, indent=1) + "\n"


def _content(item: Item, redactor: Redactor) -> Iterator[bytes]:
    """The redacted bytes of *item*."""
    with open_text(item.source) as text:
        if item.how == "numbers":
            while chunk := text.read(_LINE_BYTES):
                yield chunk
        elif item.how == "pickle":
            yield pickle.dumps(redactor.value(plain_objects(text.read(MOST_BYTES)).value), protocol=2)
        else:
            for piece in _pieces(text):
                yield redactor.text(piece.decode("utf-8", "replace")).encode()


def _pieces(text: PlainText) -> Iterator[bytes]:
    """Whole lines, many at a time; of a text without line ends, pieces that end at a comma."""
    rest = b""
    while chunk := text.read(_LINE_BYTES):
        rest += chunk
        cut = rest.rfind(b"\n") + 1 or rest.rfind(b",") + 1
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def matches(head: bytes, _name: str) -> bool:
    """The manifest of a bundle."""
    return begins_with_key(head, MARK)


def read(source: Source, text: PlainText) -> Clues:
    """The manifest says what the bundle lacks."""
    try:
        found = json.loads(text.read(_LINE_BYTES))
        left_out = [f"not in the bundle: {one['name']} ({one['why']})" for one in found.get("left_out", ())]
    except (ValueError, TypeError, KeyError) as error:
        return Clues(source, "bundle", notes=(f"damaged: {error}",))
    return Clues(source, "bundle", read=len(found.get("files", ())), notes=tuple(left_out))
