"""What the configurations say that a job's command names: DeepSpeed's, accelerate's, FSDP's, a trainer's.

Only files of a known kind are kept, parsed, and without what their keys or forms call secret; others may hold data.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddiag.schema.config_text import config_kind, json_object, yaml_mapping
from ddiag.schema.secrets import HIDDEN, redact, secret_name

MOST_BYTES = 256 << 10
MOST_FILES = 8
_SUFFIXES = (".json", ".yaml", ".yml")
_NAMES_INSIDE = re.compile(r"[\w.+-]+(?=\s*[:=])")


def named_configs(command: Sequence[str], launcher: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """``{"path", "settings", "wrong"}`` of each file; *wrong* says in words why a JSON file is none, or is empty."""
    paths = list(dict.fromkeys(_paths(command)))
    if launcher == "accelerate" and not any(word.startswith("--config_file") for word in command):
        paths += _defaults_of_accelerate(environment)
    found = (_read(Path(path)) for path in paths)
    return [one for one in found if one is not None][:MOST_FILES]


def _paths(command: Sequence[str]) -> Iterator[str]:
    for word in command:
        parts = _split(word) if re.search(r"\s", word) else [word]
        for part in parts:
            path = part.rpartition("=")[2]
            if path.endswith(_SUFFIXES):
                yield path


def _split(line: str) -> list[str]:
    """A word that is a little command line itself (``bash -c '…'``)."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _defaults_of_accelerate(environment: Mapping[str, str]) -> list[str]:
    """What ``accelerate launch`` reads when it is told nothing."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "/"), ".cache"))
    home = environment.get("HF_HOME") or str(Path(cache, "huggingface"))
    return [str(Path(home, "accelerate", f"default_config{suffix}")) for suffix in (".yaml", ".json")]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None
    found, wrong = json_object(text) if path.suffix == ".json" else (yaml_mapping(text.splitlines()), "")
    if found is None or not config_kind(found):
        return None
    return {"path": redact(str(path)), "settings": _open(found), "wrong": wrong}


def _open(value: Any) -> Any:
    """*value* without what is secret."""
    if isinstance(value, Mapping):
        return {str(key): _open(inner) for key, inner in value.items() if not secret_name(str(key))}
    if isinstance(value, list):
        return [_open(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if any(map(secret_name, _NAMES_INSIDE.findall(value))) else redact(value)
