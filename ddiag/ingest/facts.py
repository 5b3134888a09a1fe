"""What the text around the events says of the job: rank, world, groups, devices, host, versions."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from typing import Any

from ddiag.ingest.values import to_int

_MAX_RANK = 10_000_000
_VERSIONS = (
    ("cuda_runtime_version", "CUDA runtime"), ("cuda_driver_version", "CUDA driver"), ("cupti_version", "CUPTI"),
    ("hip_runtime_version", "HIP runtime"), ("hip_driver_version", "HIP driver"), ("roctracer_version", "roctracer"),
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """One process group as ``pg_config`` states it."""

    name: str
    desc: str = ""
    size: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Device:
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Facts:
    """Metadata of one trace; None and empty where it says nothing."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: tuple[Group, ...] = ()
    host: str | None = None
    devices: dict[int, Device] = field(default_factory=dict)
    base_ns: int | None = None
    with_stack: bool = False
    profile_memory: bool = False
    versions: str | None = None
    amd: bool = False


def read_facts(metadata: dict[str, Any]) -> Facts:
    """Facts from the top-level keys of a trace."""
    info = _mapping(metadata.get("distributedInfo"))
    devices = _devices(metadata.get("deviceProperties"))
    world = _count(info.get("world_size"))
    return Facts(
        rank=_rank(info, metadata, world),
        world_size=world,
        backend=_word(info.get("backend")),
        groups=_groups(info.get("pg_config")),
        host=_word(metadata.get("host_name") or metadata.get("hostname")),
        devices=devices,
        base_ns=_base(metadata.get("baseTimeNanoseconds")),
        with_stack=_flag(metadata.get("with_stack")),
        profile_memory=_flag(metadata.get("profile_memory")),
        versions=_versions(metadata, info),
        amd="roctracer_version" in metadata
        or "hip_runtime_version" in metadata
        or any("AMD" in (device.name or "") or "Instinct" in (device.name or "") for device in devices.values()),
    )


def _mapping(value: object) -> dict[str, Any]:
    """A dictionary, or one written as text (JSON or Python)."""
    if isinstance(value, str):
        value = _parsed(value)
    return {str(key): entry for key, entry in value.items()} if isinstance(value, dict) else {}


def _parsed(text: str) -> object:
    for parse in (json.loads, ast.literal_eval):
        try:
            found: object = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return found
    return None


def _rank(info: dict[str, Any], metadata: dict[str, Any], world: int | None) -> int | None:
    for value in (info.get("rank"), metadata.get("rank"), metadata.get("global_rank"), metadata.get("Rank")):
        rank = _count(value)
        if rank is not None and (world is None or rank < world):
            return rank
    return None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and not re.fullmatch(r"\s*\d{1,8}\s*", value):
        return None
    number = to_int(value, -1)
    return number if 0 <= number <= _MAX_RANK else None


def _word(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _flag(value: object) -> bool:
    return value in (1, True, "1", "true", "True")


def _base(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    number = to_int(value, -1)
    return number if 0 < number < 4 * 10**18 else None


def _groups(value: object) -> tuple[Group, ...]:
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, list):
        return ()
    return tuple(
        Group(
            name=str(entry["pg_name"]),
            desc=str(entry.get("pg_desc") or ""),
            size=_count(entry.get("pg_size")),
            ranks=_ranks(entry.get("ranks")),
        )
        for entry in value
        if isinstance(entry, dict) and isinstance(entry.get("pg_name"), (str, int))
    )


def _ranks(value: object) -> tuple[int, ...]:
    """Members of a group; none when the list is cut short."""
    if isinstance(value, str):
        value = None if "..." in value else _parsed(value)
    if not isinstance(value, list):
        return ()
    members = [_count(entry) for entry in value]
    return tuple(member for member in members if member is not None) if None not in members else ()


def _devices(value: object) -> dict[int, Device]:
    if not isinstance(value, list):
        return {}
    found = {}
    for index, entry in enumerate(value):
        if isinstance(entry, dict):
            memory = to_int(entry.get("totalGlobalMem"), -1)
            number = to_int(entry.get("id"), index)
            found[number] = Device(_word(entry.get("name")), memory if memory > 0 else None)
    return found


def _versions(metadata: dict[str, Any], info: dict[str, Any]) -> str | None:
    said = [
        f"{label} {_readable(label, metadata[key])}"
        for key, label in _VERSIONS
        if isinstance(metadata.get(key), (int, float, str))
    ]
    if isinstance(info.get("nccl_version"), str):
        said.append(f"NCCL {info['nccl_version']}")
    return ", ".join(said) or None


def _readable(label: str, version: object) -> str:
    """12040 -> 12.4 (CUDA), 60443483 -> 6.4.43483 (HIP)."""
    number = to_int(version, -1) if isinstance(version, int) else -1
    if label.startswith("CUDA ") and number >= 1000:
        return f"{number // 1000}.{number % 1000 // 10}"
    if label.startswith("HIP ") and number >= 10_000_000:
        return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
    return str(version)
