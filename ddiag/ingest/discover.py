"""From what the user typed (files, folders, patterns, URLs, archives) to the list of files to look at."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fsspec

from ddiag.ingest.sources import GZIP, STORAGE_ERRORS, ZIP, ZSTD, Source, is_remote, open_binary, zip_members

_PATTERN = frozenset("*?[")
_DIGITS = re.compile(r"([0-9]+)")


@dataclass
class Found:
    """Sources to sniff, and what could not even be listed."""

    sources: list[Source] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)


def discover(paths: Sequence[str]) -> Found:
    """Expand *paths*; every file appears once, in natural order within each path."""
    found = Found()
    seen: set[str] = set()
    for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        try:
            files, explicit = _expand(os.fspath(path))
        except STORAGE_ERRORS as error:
            found.unreadable.append((str(path), f"cannot be listed: {error}"))
            continue
        if not files:
            found.unreadable.append((str(path), "no such file or folder" if explicit else "contains no files"))
        for name in files:
            identity = name if is_remote(name) else os.path.realpath(name)
            if identity not in seen:
                seen.add(identity)
                _add(found, name, explicit=explicit)
    return found


def _expand(path: str) -> tuple[list[str], bool]:
    """The files *path* stands for, and whether they were named (alone or by a pattern) rather than found."""
    if is_remote(path):
        return _expand_remote(path)
    local = Path(path).expanduser()
    if local.is_dir():
        return _walk(local), False
    if local.exists():
        return [str(local)], True
    return [file for match in _matches(local) for file in (_walk(match) if match.is_dir() else [str(match)])], True


def _matches(pattern: Path) -> list[Path]:
    """What a pattern with wildcards stands for; nothing when it has none."""
    first = next((k for k, part in enumerate(pattern.parts) if not _PATTERN.isdisjoint(part)), None)
    if first is None:
        return []
    base = Path(*pattern.parts[:first])
    return sorted(base.glob(str(Path(*pattern.parts[first:]))), key=lambda match: natural(str(match)))


def _walk(folder: Path) -> list[str]:
    """Files below *folder*, hidden ones left out."""
    files = []
    for base, folders, names in os.walk(folder):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=natural)
        files += [str(Path(base) / name) for name in sorted(names, key=natural) if not name.startswith(".")]
    return files


def _expand_remote(url: str) -> tuple[list[str], bool]:
    system, path = fsspec.core.url_to_fs(url)
    if not _PATTERN.isdisjoint(path):
        names, explicit = system.glob(path), True
    elif system.isdir(path):
        names, explicit = system.find(path), False
    else:
        return [url], True
    return [system.unstrip_protocol(name) for name in sorted(names, key=natural)], explicit


def natural(text: str) -> list[tuple[int, int | str]]:
    """Sort key that puts rank10 after rank9."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(text)]


def _add(found: Found, path: str, *, explicit: bool) -> None:
    try:
        size, magic = _size_and_magic(path)
        if magic != ZIP:
            packed = magic.startswith(GZIP) or magic == ZSTD
            found.sources.append(Source(path, bytes=size, packed=packed, explicit=explicit))
            return
        members = zip_members(path)
    except STORAGE_ERRORS as error:
        found.unreadable.append((path, why_unreadable(error)))
        return
    found.sources += [
        Source(path, member, bytes=unpacked, explicit=explicit and len(members) == 1)
        for member, unpacked in _visible(members)
    ]
    if not members:
        found.unreadable.append((path, "an empty zip archive"))


def _visible(members: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    kept = [entry for entry in members if not entry[0].startswith("__MACOSX/") and "/." not in f"/{entry[0]}"]
    return sorted(kept, key=lambda entry: natural(entry[0]))


def _size_and_magic(path: str) -> tuple[int, bytes]:
    if not is_remote(path) and not Path(path).is_file():
        raise OSError("not a regular file")
    with open_binary(path) as raw:
        magic = raw.read(4)
        size = raw.seek(0, os.SEEK_END) if raw.seekable() else 0
    return size, magic


def why_unreadable(error: Exception) -> str:
    """One line for an error of a file system, store or archive."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, PermissionError):
        return "permission denied"
    return f"cannot be read: {text}"
