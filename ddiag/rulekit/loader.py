"""Finds rule files, imports each by its location, and holds it to the contract of :mod:`ddiag.rulekit.rule`."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ddiag.errors import RuleError, UsageError
from ddiag.model.signals import FAMILIES
from ddiag.rulekit.rule import HEADINGS, LoadedRule, Rule

FILE_NAME = re.compile(r"(?P<id>[a-z]{2,12}\d{3,4})_[a-z0-9_]+\.py")
ROOT_CAUSE = re.compile(r"[A-Z]{2,12}-\d{2,4}")
IGNORED = ("_", ".", "test_", "conftest")
"""Beginnings of file names that are not rules."""
HEADING = re.compile(rf"\s*#*\s*({'|'.join(HEADINGS)})\s*:?\s*")
UNDERLINE = re.compile(r"\s*[-=~^]{3,}\s*")
LIMIT_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


def load_rules(built_in: Path, added: Sequence[Path] = ()) -> tuple[LoadedRule, ...]:
    """Every rule below *built_in* and the *added* folders (or single files), in order of id.

    Raises RuleError, naming the file, when one breaks the contract; UsageError when an added path holds no rule.
    """
    rules = [load_rule(path, built_in=True) for path in rule_files(built_in)]
    for folder in added:
        files = list(rule_files(folder))
        if not files:
            raise UsageError(f"{folder}: no rule files there (expected names like dd901_my_cause.py)")
        rules += [load_rule(path, built_in=False) for path in files]
    _check_unique(rules)
    return tuple(sorted(rules, key=sort_key))


def sort_key(rule: LoadedRule) -> tuple[str, int]:
    """DD201 before DD1001, and a team's own prefixes apart."""
    prefix = rule.rule.id.rstrip("0123456789")
    return prefix, int(rule.rule.id[len(prefix) :])


def rule_files(place: Path) -> Iterator[Path]:
    """Python files in *place* and its direct sub-folders that should be rules, by name."""
    if place.is_file():
        yield place
        return
    if not place.is_dir():
        raise UsageError(f"{place}: no such rules folder")
    for path in sorted((*place.glob("*.py"), *place.glob("*/*.py"))):
        relative = path.relative_to(place)
        if not any(part.startswith(IGNORED) for part in relative.parts):
            yield path


def load_rule(path: Path, *, built_in: bool) -> LoadedRule:
    """Import the rule file *path* and check it."""
    match = FILE_NAME.fullmatch(path.name)
    if match is None:
        raise RuleError(
            f"{path}: not a rule file name; expected ddNNN_<name>.py in lower case (start it with _ if it is no rule)"
        )
    module = _import(path)
    rule = _rule(module, path, match["id"].upper())
    title, sections = read_docstring(module.__doc__ or "", path)
    if built_in:
        _check_family(rule, path)
    return LoadedRule(
        rule=rule,
        title=title,
        sections=sections,
        limits=_limits(module, path),
        check=_check_function(module, path),
        family=path.parent.name,
        path=str(path),
        built_in=built_in,
    )


def _import(path: Path) -> ModuleType:
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"ddiag_rule_{digest}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuleError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever it raises is the file's fault
        del sys.modules[name]
        line = _line_of(error, path)
        raise RuleError(f"{path}{line}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _line_of(error: BaseException, path: Path) -> str:
    """':12' for the last line of *path* in the traceback."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f":{error.lineno}"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f":{line}"


def _rule(module: ModuleType, path: Path, expected_id: str) -> Rule:
    rule = getattr(module, "RULE", None)
    if not isinstance(rule, Rule):
        raise RuleError(f"{path}: has no RULE = Rule(...)")
    if rule.id != expected_id:
        raise RuleError(f"{path}: RULE.id is {rule.id!r}, but the file name says {expected_id}")
    if not ROOT_CAUSE.fullmatch(rule.root_cause):
        raise RuleError(f"{path}: root_cause {rule.root_cause!r} is not of the form RC-43")
    unknown = [str(getattr(f, "__name__", f)) for f in (*rule.needs, *rule.optional) if f not in FAMILIES]
    if unknown:
        raise RuleError(f"{path}: not a signal family: {', '.join(unknown)} (see ddiag.model.signals.FAMILIES)")
    for name in ("capture", "symptom", "evidence"):
        if not getattr(rule, name).strip():
            raise RuleError(f"{path}: RULE.{name} is empty")
    if rule.id in rule.explained_by:
        raise RuleError(f"{path}: RULE.explained_by names the rule itself")
    return rule


def read_docstring(text: str, path: Path) -> tuple[str, dict[str, str]]:
    """The cause in one sentence, and the four sections of the runbook."""
    lines = inspect.cleandoc(text).splitlines()
    title = lines[0].strip() if lines else ""
    if not title or HEADING.fullmatch(title):
        raise RuleError(f"{path}: the docstring must begin with the cause in one sentence")
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines[1:]:
        heading = HEADING.fullmatch(line)
        if heading is not None:
            current = sections.setdefault(heading[1], [])
        elif not UNDERLINE.fullmatch(line):
            current.append(line)
    missing = [h for h in HEADINGS if not "".join(sections.get(h, [])).strip()]
    if missing:
        raise RuleError(f"{path}: the docstring lacks the section {', '.join(missing)} (each needs text)")
    if list(sections) != list(HEADINGS):
        raise RuleError(f"{path}: the docstring's sections must come in the order {', '.join(HEADINGS)}")
    return title, {name: "\n".join(body).strip() for name, body in sections.items()}


def _limits(module: ModuleType, path: Path) -> Any:
    limits: Any = getattr(module, "Limits", None)
    if not isinstance(limits, type) or not dataclasses.is_dataclass(limits):
        raise RuleError(f"{path}: has no dataclass Limits")
    if not limits.__dataclass_params__.frozen:  # type: ignore[attr-defined] # typeshed does not know the attribute
        raise RuleError(f"{path}: Limits must be frozen: @dataclass(frozen=True)")
    for field in dataclasses.fields(limits):
        if field.default is dataclasses.MISSING:
            raise RuleError(f"{path}: Limits.{field.name} has no default")
        if limit_type(field) is None:
            raise RuleError(f"{path}: Limits.{field.name} must be an int, float, bool or str")
    return limits()


def limit_type(field: dataclasses.Field[Any]) -> type | None:
    """int, float, bool or str; None for anything else."""
    name = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
    return LIMIT_TYPES.get(name)


def _check_function(module: ModuleType, path: Path) -> Any:
    check = getattr(module, "check", None)
    if not callable(check):
        raise RuleError(f"{path}: has no function check(signals, limits)")
    if len(inspect.signature(check).parameters) != 2:
        raise RuleError(f"{path}: check must take exactly (signals, limits)")
    return check


def _check_family(rule: Rule, path: Path) -> None:
    """DD402 lives in dd4_…, DD1001 in dd10_…: the folder is the family."""
    if not rule.id.startswith("DD"):
        raise RuleError(f"{path}: built-in ids begin with DD, not {rule.id}")
    family = f"dd{rule.id[2:-2]}"
    if path.parent.name.split("_")[0] != family:
        raise RuleError(f"{path}: {rule.id} belongs in a folder named {family}_<family>")


def _check_unique(rules: Iterable[LoadedRule]) -> None:
    seen: dict[str, LoadedRule] = {}
    for rule in rules:
        first = seen.setdefault(rule.rule.id, rule)
        if first is not rule:
            raise RuleError(f"{rule.path}: the id {rule.rule.id} is already taken by {first.path}")


def reference_problems(rules: Sequence[LoadedRule]) -> list[str]:
    """What is wrong *between* rules: ``explained_by`` naming nobody, or two rules that explain each other."""
    by_id = {rule.rule.id: rule for rule in rules}
    problems = []
    for rule in rules:
        for other in rule.rule.explained_by:
            if other not in by_id:
                problems.append(f"{rule.path}: explained_by names {other}, which is no rule")
            elif rule.rule.id in by_id[other].rule.explained_by and rule.rule.id < other:
                problems.append(f"{rule.path}: {rule.rule.id} and {other} explain each other")
    return problems
