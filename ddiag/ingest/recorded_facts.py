"""What a recording says beside its records: facts of processes, groups, the environment, the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddiag.ingest.facts import Group

MAX_VALUE_CHARACTERS = 2000
_NOT_SETTINGS = (
    *("group", "group_destroyed", "activated", "fsdp_unit", "device_memory", "hook_missing", "ddp_buckets"),
    *("exception", "ddp_unused", "ddp_log"),
)
"""Facts of single things or moments."""
_NOISE = ("t", "kind", "environment", "packages")
"""Not flattened: when, what kind, and what becomes settings of its own."""
LOOKED_AT = ("pinned_bytes", "reserved_bytes", "inactive_split_bytes", "ooms")
"""Columns of the table ``pinned_memory``."""


@dataclass
class ProcessFacts:
    """The facts of one process, as far as they can be read."""

    groups: dict[str, Group] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)
    """By group."""
    python_groups: bool = False
    """Some group is of a Python class: no tier sees its calls."""
    torch: str = ""
    cuda: str | None = None
    host: str | None = None
    process: Mapping[str, Any] = field(default_factory=dict)
    """What it said of itself when recording began (:mod:`ddiag.capture.process_facts`)."""
    settings: dict[str, str] = field(default_factory=dict)
    tier: Mapping[str, Any] = field(default_factory=dict)
    exception: Mapping[str, Any] = field(default_factory=dict)
    """What ended the process, when nobody caught it: type, message, where."""
    device_memory: list[dict[str, int]] = field(default_factory=list)
    """Looks at memory that changes slowly: mono_ns, and what of ``LOOKED_AT`` could be told."""
    unused: list[tuple[int, int, int]] = field(default_factory=list)
    """(DDP module, looks so far, bytes) that its search for unused parameters found."""
    unwatched: list[str] = field(default_factory=list)
    """What a hook looked for and did not find in this version of its framework."""
    unreadable: int = 0
    """Lines that are no facts (a last line cut short does not count)."""


def read_facts(data: bytes) -> ProcessFacts:
    """The lines of one ``.facts.jsonl``."""
    found = ProcessFacts()
    *lines, _unfinished = data.split(b"\n")
    for line in lines:
        fact = decode(line)
        if fact is None:
            found.unreadable += 1
        elif fact.get("kind") == "group":
            _group(found, fact)
        else:
            _take(found, fact)
    return found


def decode(line: bytes) -> dict[str, Any] | None:
    try:
        fact = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fact if isinstance(fact, dict) else None


def _group(found: ProcessFacts, fact: Mapping[str, Any]) -> None:
    name = str(fact.get("name", ""))
    ranks = fact.get("ranks")
    members = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()
    size = fact.get("size")
    found.groups[name] = Group(
        name, str(fact.get("desc", "")), size if isinstance(size, int) else len(members) or None, members
    )
    if fact.get("backend"):
        found.backends[name] = str(fact["backend"])
    found.python_groups |= fact.get("python") is True


def _take(found: ProcessFacts, fact: Mapping[str, Any]) -> None:
    kind = str(fact.get("kind", ""))
    if kind == "process":
        found.process = fact
        found.torch = str(fact.get("torch") or "")
        found.cuda = None if fact.get("cuda") is None else str(fact["cuda"])
        found.host = None if fact.get("host") is None else str(fact["host"])
    if kind == "tier":
        found.tier = fact
    if kind == "exception":
        found.exception = fact
    if kind == "device_memory" and isinstance(fact.get("mono_ns"), int):
        look = {name: fact[name] for name in ("mono_ns", *LOOKED_AT) if isinstance(fact.get(name), int)}
        found.device_memory.append(look)
    if kind == "ddp_unused":
        index, looks, size = (fact.get(name) for name in ("index", "looks", "bytes"))
        if isinstance(index, int) and isinstance(looks, int) and isinstance(size, int):
            found.unused.append((index, looks, size))
    if kind == "fsdp_unit" and fact.get("api"):
        found.settings["fsdp.api"] = str(fact["api"])
        for name in ("strategy", "offload"):
            if fact.get(name):
                found.settings[f"fsdp.{name}"] = str(fact[name])
    if kind == "hook_missing":
        found.unwatched += [f"{fact.get('hook')}: {name}" for name in fact.get("names") or ()]
    if kind and kind not in _NOT_SETTINGS:
        found.settings |= dict(flattened(kind, {key: value for key, value in fact.items() if key not in _NOISE}))


def flattened(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """``("ddp.bucket_cap_mb", "25")`` for every leaf; lists as JSON."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(f"{prefix}.{key}", inner)
    elif value is not None:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield prefix, text[:MAX_VALUE_CHARACTERS]


def problems(data: bytes) -> list[str]:
    """One line for each thing the recorder itself ran into (``errors.jsonl``)."""
    counted: dict[str, int] = {}
    for fact in _facts(data.split(b"\n")):
        text = f"{fact.get('where', 'recorder')}: {fact.get('error', '?')}"[:200]
        counted[text] = counted.get(text, 0) + 1
    return [text if count == 1 else f"{text} ({count} times)" for text, count in counted.items()]


def _facts(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        fact = decode(line) if line.strip() else None
        if fact is not None:
            yield fact
