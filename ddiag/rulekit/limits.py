"""Thresholds from ``ddiag.toml``: ``[limits]`` overrides fields of the rules' ``Limits``."""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddiag.errors import UsageError
from ddiag.rulekit.loader import limit_type
from ddiag.rulekit.rule import LoadedRule

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SECTIONS = ("limits",)
"""Tables that ddiag.toml may have."""
Overrides = Mapping[str, Mapping[str, object]]
"""Rule id -> field -> value."""


def read_limits(path: Path) -> Overrides:
    """The ``[limits]`` of the TOML file *path*, by rule id in upper case.

    Both ``DD101.stall_share = 0.2`` and ``[limits.DD101]`` work. Raises UsageError when the file cannot be read.
    """
    document = _parse(path)
    for section in document:
        if section not in SECTIONS:
            raise UsageError(f"{path}: unknown section [{section}]{_did_you_mean(section, SECTIONS)}")
    limits = document.get("limits", {})
    if not isinstance(limits, dict):
        raise UsageError(f"{path}: [limits] must be a table of rules")
    overrides: dict[str, dict[str, object]] = {}
    for key, value in limits.items():
        rule, dot, field = key.partition(".")  # the quoted form "DD101.stall_share"
        fields = {field: value} if dot else value
        if not isinstance(fields, dict):
            raise UsageError(f"{path}: [limits] {key} = {value!r} names no limit; write {key}.<limit> = …")
        overrides.setdefault(rule.upper(), {}).update(fields)
    return overrides


def _parse(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from error
    return document


def apply_limits(rules: Sequence[LoadedRule], overrides: Overrides, source: str) -> tuple[LoadedRule, ...]:
    """*rules* with *overrides* applied.

    Raises UsageError, naming *source*, for an unknown rule, an unknown limit or a wrong type.
    """
    ids = [rule.rule.id for rule in rules]
    for rule_id in overrides:
        if rule_id not in ids:
            raise UsageError(f"{source}: [limits] names {rule_id}, which is no rule{_did_you_mean(rule_id, ids)}")
    return tuple(
        dataclasses.replace(rule, limits=_overridden(rule, overrides[rule.rule.id], source))
        if rule.rule.id in overrides
        else rule
        for rule in rules
    )


def _overridden(rule: LoadedRule, values: Mapping[str, object], source: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(rule.limits)}
    changes = {}
    for name, value in values.items():
        if name not in fields:
            hint = _did_you_mean(name, fields)
            raise UsageError(f"{source}: {rule.rule.id} has no limit {name!r}{hint}; it has: {', '.join(fields)}")
        changes[name] = _typed(value, limit_type(fields[name]), f"{source}: {rule.rule.id}.{name}")
    return dataclasses.replace(rule.limits, **changes)


def _typed(value: object, wanted: type | None, what: str) -> object:
    """*value* as the type of the limit; an int serves as a float, nothing else is converted."""
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if wanted is None or type(value) is not wanted:
        name = "unknown" if wanted is None else wanted.__name__
        raise UsageError(f"{what} must be of type {name}, not {type(value).__name__} ({value!r})")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{what} must be a finite number, not {value}")
    return value


def _did_you_mean(word: str, choices: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {close[0]}?" if close else ""
