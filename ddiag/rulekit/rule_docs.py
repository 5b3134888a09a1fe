"""What a rule file says about itself beyond its ``RULE``: what each limit means, and how a fix is verified.

Read from the source, so that nothing has to be written twice.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ddiag.rulekit.rule import LoadedRule


@dataclass(frozen=True)
class LimitDoc:
    """One threshold of a rule."""

    name: str
    value: Any
    meaning: str


def limit_docs(rule: LoadedRule) -> tuple[LimitDoc, ...]:
    """The limits in effect, each with the docstring under its field."""
    meanings = _field_docstrings(_tree(rule.path))
    return tuple(
        LimitDoc(field.name, getattr(rule.limits, field.name), meanings.get(field.name, ""))
        for field in dataclasses.fields(rule.limits)
    )


def verify_text(rule: LoadedRule) -> str:
    """The first ``verify=`` of the file's findings; limits in it are filled in, figures of a run become '…'."""
    for node in ast.walk(_tree(rule.path)):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "verify":
                    text = "".join(_pieces(keyword.value, rule.limits))
                    if text.strip("… "):
                        return text
    return "`ddiag analyze NEW_TRACES` no longer reports it"


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _field_docstrings(tree: ast.Module) -> dict[str, str]:
    """Field of ``Limits`` -> the string that stands under it."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Limits":
            for field, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = _string(after)
    return found


def _string(node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
        case _:
            return ""


def _pieces(node: ast.AST, limits: Any) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            for value in values:
                yield from _pieces(value, limits)
        case ast.FormattedValue(value=ast.Attribute(value=ast.Name(id="limits"), attr=name), format_spec=spec):
            yield format(getattr(limits, name), "".join(_pieces(spec, limits)) if spec is not None else "")
        case ast.IfExp(body=body):
            yield from _pieces(body, limits)
        case _:
            yield "…"
