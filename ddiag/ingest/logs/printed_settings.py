"""Configurations printed into a log: DeepSpeed's ``json = {``, TrainingArguments, YAML or JSON shown with ``cat``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from ddiag.ingest.config_files import config_settings
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Seen, Setting
from ddiag.schema.config_text import json_object, yaml_mapping
from ddiag.schema.secrets import secret_name

_MOST_LINES = 600
_JSON = re.compile(r"json = (\{.*)$")
_PART = re.compile(r"^\s*\"(zero_optimization|fsdp_config)\"\s*:\s*(\{.*)$")
_YAML = re.compile(r"^\s*(fsdp_config|deepspeed_config):\s*$")
_AS_DICT = re.compile(r"\b(fsdp_config|deepspeed_config)['\"]?\s*[:=]\s*(\{.*\})")
_YAML_TOP = re.compile(r"^(?:compute_environment|distributed_type):\s")
_ARGUMENTS = re.compile(r"\b(?:Seq2Seq)?TrainingArguments\($|\b(?:\w+Config|TrainingArguments)\(\s*$")
_ARGUMENT = re.compile(r"^\s*(\w+)=(.*?),?\s*$")


class PrintedSettings:
    """Settings that a program or a person printed."""

    needles: tuple[str, ...] = (
        "json = {", '"zero_optimization"', '"fsdp_config"', "fsdp_config:", "deepspeed_config:", "compute_environment:",
        "distributed_type:", "TrainingArguments(", "Config(",
    )  # fmt: skip

    def __init__(self) -> None:
        self._read_to = 0

    def line(self, line: Line) -> Iterator[Seen]:
        if line.number <= self._read_to:
            return
        if found := _JSON.search(line.text):
            yield from self._json(line, found[1], "")
        elif found := _PART.search(line.text):
            yield from self._json(line, found[2], found[1])
        elif found := _AS_DICT.search(line.text):
            yield from _dictionary(found[1], found[2])
        elif _YAML_TOP.search(line.text) or _YAML.search(line.text):
            yield from self._yaml(line)
        elif _ARGUMENTS.search(line.text):
            yield from self._arguments(line)

    def end(self) -> Iterator[Seen]:
        return iter(())

    def _json(self, line: Line, first: str, key: str) -> Iterator[Seen]:
        """The object that begins in *line*, up to where its brackets close."""
        parts, depth = [first], _depth(first)
        if depth > 0:
            for later in line.own(_MOST_LINES):
                parts.append(later.text)
                self._read_to = later.number
                depth += _depth(later.text)
                if depth <= 0:
                    break
        found, _ = json_object("\n".join(parts).rstrip().rstrip(","))
        if found is not None:
            yield from _settings({key: found} if key else found)

    def _yaml(self, line: Line) -> Iterator[Seen]:
        lines = [line.text]
        for later in line.own(_MOST_LINES):
            if not re.match(r"^\s*(?:[\w.\-]+:(?:\s.*)?|- .*)$", later.text):
                break
            lines.append(later.text)
            self._read_to = later.number
        yield from _settings(yaml_mapping(lines))

    def _arguments(self, line: Line) -> Iterator[Seen]:
        for later in line.own(_MOST_LINES):
            found = _ARGUMENT.search(later.text)
            if found is None:
                return
            self._read_to = later.number
            if not secret_name(found[1]):
                yield Setting("trainer", found[1], found[2].strip("'\""))


def _dictionary(key: str, text: str) -> Iterator[Setting]:
    """A Python dictionary printed in one line, as ``accelerate env`` does."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return
    if isinstance(found, dict) and found:
        whole = _settings({key: found, "distributed_type": ""})
        yield from (one for one in whole if one.key != "distributed_type")


def _depth(text: str) -> int:
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    return bare.count("{") + bare.count("[") - bare.count("}") - bare.count("]")


def _settings(found: Mapping[str, object]) -> Iterator[Setting]:
    return config_settings(found, "")
