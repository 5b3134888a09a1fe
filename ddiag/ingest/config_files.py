"""Configuration files: DeepSpeed, accelerate, FSDP and trainer settings in JSON or YAML, told by their keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.trace import UnusableError
from ddiag.model.incident import Metric, Seen, Setting
from ddiag.schema.config_text import config_kind, json_object, scalar, yaml_mapping
from ddiag.schema.secrets import secret_name

MOST_BYTES = 16 << 20
_YAML_LINE = re.compile(rb"^\s*(?:[\w.\-/\"']+:(?:\s.*)?|-\s.*|#.*|---|\.\.\.)?\s*$")
_YAML_SHARE = 0.9


def matches_json(head: bytes, _: str) -> bool:
    """A JSON object with keys of a known configuration, or a Trainer's state; not one object per line (a log)."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head.startswith(b"{") or b'"traceEvents"' in head or b"\n{" in head:
        return False
    return _is_state(head) or bool(config_kind(_quoted(head)))


def matches_yaml(head: bytes, _: str) -> bool:
    """Lines that are nearly all ``key: value``, with keys of a known configuration at the left margin."""
    lines = [line for line in head.splitlines() if line.strip()]
    if not lines or lines[0].lstrip().startswith((b"{", b"[")):
        return False
    keys = {line.split(b":")[0].decode("utf-8", "replace") for line in lines if b":" in line and line[:1].strip()}
    good = sum(1 for line in lines if _YAML_LINE.match(line))
    return bool(config_kind(keys)) and good >= _YAML_SHARE * len(lines)


def read_json(source: Source, text: PlainText) -> Clues:
    content, cut = _whole(text)
    found, wrong = json_object(content)
    if found is None:
        raise UnusableError(f"a configuration that is {wrong or 'no JSON'}: repair it and give it again")
    notes = tuple(filter(None, (text.damage, cut, wrong)))
    if isinstance(found.get("log_history"), list):
        return Clues(source, "trainer_state", to_tables(_history(found["log_history"], source.label)), notes=notes)
    records = [*_settings(found, source.label), *_broken(wrong, source.label)]
    return Clues(source, config_kind(found), to_tables(records), read=len(records), notes=notes)


def read_yaml(source: Source, text: PlainText) -> Clues:
    content, cut = _whole(text)
    found = yaml_mapping(content.splitlines())
    records = list(_settings(found, source.label))
    if not records:
        raise UnusableError("a YAML configuration without a setting that could be read")
    return Clues(
        source, config_kind(found), to_tables(records), read=len(records), notes=tuple(filter(None, (text.damage, cut)))
    )


def settings_of(kind: str, found: Mapping[str, Any], source: str, prefix: str = "") -> Iterator[Setting]:
    """Every leaf of *found* as a setting with a dotted key; secrets are left out."""
    for key, value in found.items():
        name = f"{prefix}{key}"
        if secret_name(str(key)):
            continue
        if isinstance(value, Mapping) and value:
            yield from settings_of(kind, value, source, f"{name}.")
        else:
            yield Setting(kind, name, _shown(value), source=source)


def _shown(value: Any) -> str:
    """JSON, but words bare; text that reads like a number or a truth value keeps its quotes: it is not one."""
    return value if isinstance(value, str) and isinstance(scalar(value), str) else json.dumps(value)


def config_settings(found: Mapping[str, Any], source: str) -> Iterator[Setting]:
    """The settings of a configuration found elsewhere (in a log), by its keys."""
    return _settings(found, source)


def _settings(found: Mapping[str, Any], source: str) -> Iterator[Setting]:
    kind = config_kind(found)
    if not kind:
        return
    yield from settings_of(kind, found, source)
    nested = found.get("deepspeed_config") or found.get("deepspeed")
    if isinstance(nested, Mapping) and kind != "ds_config":
        yield from settings_of("ds_config", _as_ds_config(nested), source)
    fsdp = found.get("fsdp_config") if isinstance(found.get("fsdp_config"), Mapping) else None
    fsdp = found if kind == "fsdp_config" else fsdp
    if isinstance(fsdp, Mapping):
        yield from settings_of("fsdp", {str(key).removeprefix("fsdp_"): value for key, value in fsdp.items()}, source)


def _as_ds_config(nested: Mapping[str, Any]) -> dict[str, Any]:
    """accelerate's flat DeepSpeed plugin in DeepSpeed's own words; a full configuration stays as it is."""
    zero: dict[str, Any] = {}
    if "zero_stage" in nested:
        zero["stage"] = nested["zero_stage"]
    for part in ("optimizer", "param"):
        device = nested.get(f"offload_{part}_device")
        if device not in (None, "none"):
            zero[f"offload_{part}"] = {"device": device}
    kept = {key: value for key, value in nested.items() if not str(key).startswith(("zero_stage", "offload_"))}
    return kept | ({"zero_optimization": zero} if zero else {})


def _quoted(head: bytes) -> set[str]:
    keys = {key.decode() for key in re.findall(rb'"(\w{1,60})"\s*:', head)}
    if keys & {"fp16", "bf16"} and "enabled" in keys:
        keys.add("zero_optimization")
    return keys


def _is_state(head: bytes) -> bool:
    return b'"log_history"' in head and b'"global_step"' in head


def _history(entries: list[Any], label: str) -> Iterator[Seen]:
    """Numbers of a Hugging Face ``trainer_state.json``."""
    names = {
        "loss": "loss",
        "grad_norm": "grad_norm",
        "learning_rate": "learning_rate",
        "train_samples_per_second": "samples_per_s",
    }
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        step = entry.get("step") if isinstance(entry.get("step"), int) else None
        for key, name in names.items():
            value = entry.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield Metric(name, float(value), step, source=label)


def _broken(wrong: str, label: str) -> Iterator[Setting]:
    """That a configuration does not parse is itself a fact: the launcher refuses it."""
    if wrong:
        yield Setting("config_error", "json", wrong, source=label)


def _whole(text: PlainText) -> tuple[str, str]:
    content = text.read(MOST_BYTES)
    cut = "only its first 16 MiB were read" if len(content) >= MOST_BYTES else ""
    return content[:MOST_BYTES].decode("utf-8-sig", errors="replace"), cut
