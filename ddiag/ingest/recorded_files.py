"""Which of the files found belong to recordings of ddiag, and to which run and process.

A run folder may be given whole, inside another folder, as an archive, or as a single ``.ring``; names follow
:mod:`ddiag.schema.folder`, but what a ring is of comes from its header.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddiag.ingest.discover import natural
from ddiag.ingest.sources import STORAGE_ERRORS, Source, is_remote, read_whole
from ddiag.schema.folder import ANALYSIS_LOG, DIAGNOSIS, ENV_JSON, ERRORS, REPORT, RUN_JSON, UPLOAD_LOG

SUFFIXES = (".native.ring", ".ring", ".steps", ".names", ".facts.jsonl", ".fatal")
"""Of one process's files, longest first."""
_OWN_FILES = (RUN_JSON, ENV_JSON, ERRORS, REPORT, DIAGNOSIS, ANALYSIS_LOG, UPLOAD_LOG)
_OF_NO_USE = ("bootstrap/", "profile/request.json", "hang/request-", "hang/diagnosis-")
_RANKS = re.compile(r"^(?:(.*)/)?ranks/a(\d+)$")


@dataclass
class ProcessSources:
    """The files of one process, by suffix."""

    stem: str
    """Path without the suffix."""
    files: dict[str, Source] = field(default_factory=dict)

    def read(self, suffix: str) -> bytes | None:
        source = self.files.get(suffix)
        return None if source is None else read_whole(source)

    @property
    def label(self) -> str:
        found = self.files.get(".ring") or next(iter(self.files.values()))
        return found.label

    @property
    def bytes(self) -> int:
        return sum(source.bytes for source in self.files.values())


@dataclass
class RunSources:
    """The files of one run folder."""

    root: str
    processes: list[ProcessSources] = field(default_factory=list)
    own: dict[str, Source] = field(default_factory=dict)
    """``run.json``, ``env.json``, ``errors.jsonl``, reports."""
    samples: list[Source] = field(default_factory=list)
    nodes: list[Source] = field(default_factory=list)
    """What further supervisors wrote of themselves."""


def claim(sources: Sequence[Source]) -> tuple[list[RunSources], list[Source]]:
    """The run folders among *sources*, and what is not the recorder's; its profiler traces are among the latter."""
    roots = {_folder(source) for source in sources if source.name == RUN_JSON}
    roots |= {_root_of(source) for source in sources if _suffix(source) in (".ring", ".native.ring", ".steps")}
    runs = {root: RunSources(root) for root in sorted(roots, key=natural)}
    processes: dict[str, dict[str, ProcessSources]] = defaultdict(dict)
    rest = []
    for source in sources:
        root = _owner(source, roots)
        if root is None or not _take(source, runs[root], processes[root]):
            rest.append(source)
    for root, found in processes.items():
        usable = [one for one in found.values() if set(one.files) & {".ring", ".native.ring", ".steps"}]
        runs[root].processes = [_completed(one) for one in usable]
    return list(runs.values()), rest


def _suffix(source: Source) -> str:
    return next((suffix for suffix in SUFFIXES if source.name.endswith(suffix)), "")


def _folder(source: Source) -> str:
    return _label(source).rpartition("/")[0]


def _label(source: Source) -> str:
    return source.label.replace("\\", "/")


def _root_of(source: Source) -> str:
    """The run folder a process's file lies in; its own folder when it is not in one."""
    folder = _folder(source)
    match = _RANKS.match(folder)
    return (match[1] or "") if match else folder


def _owner(source: Source, roots: set[str]) -> str | None:
    """The innermost run folder that *source* lies in."""
    folder = _folder(source)
    while folder not in roots:
        if "/" not in folder:
            return "" if "" in roots else None
        folder = folder.rpartition("/")[0]
    return folder


def _take(source: Source, run: RunSources, processes: dict[str, ProcessSources]) -> bool:
    """Put *source* where it belongs in *run*; False when it is none of the recorder's files."""
    label = _label(source)
    inside = label[len(run.root) :].lstrip("/") if run.root else label
    suffix = _suffix(source)
    if suffix:
        stem = label.removesuffix(suffix)
        processes.setdefault(stem, ProcessSources(stem)).files[suffix] = source
    elif inside in _OWN_FILES:
        run.own[inside] = source
    elif inside.startswith(_OF_NO_USE):
        pass
    elif source.name.endswith(".samples"):
        run.samples.append(source)
    elif inside.startswith("nodes/"):
        run.nodes.append(source)
    else:
        return False
    return True


def _completed(process: ProcessSources) -> ProcessSources:
    """With the files beside it, when only some of them were named."""
    first = next(iter(process.files.values()))
    if first.member or is_remote(first.path):
        return process
    for suffix in SUFFIXES:
        path = Path(process.stem + suffix)
        if suffix not in process.files and path.is_file():
            process.files[suffix] = Source(str(path), bytes=path.stat().st_size, explicit=False)
    return process


def whole(source: Source) -> bytes:
    """What a side file holds; nothing when it cannot be read (it is being replaced)."""
    try:
        return read_whole(source)
    except STORAGE_ERRORS:
        return b""
