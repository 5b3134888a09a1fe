"""The project's Python files as the architecture tests see them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Source:
    path: str
    """Relative to the repository."""
    tree: ast.Module
    lines: int

    @property
    def room(self) -> str:
        """The folder under ``ddiag/``, the module's own name at its top, or 'rules'."""
        first, *rest = Path(self.path).with_suffix("").parts
        if first != "ddiag":
            return first
        return rest[0]

    def imports(self) -> Iterator[tuple[int, str]]:
        """(line, dotted name) of every import, wherever in the file; ``from a import b`` gives a.b."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = self._absolute(node)
                yield from ((node.lineno, f"{package}.{alias.name}") for alias in node.names)
            elif (name := _dynamic_import(node)) is not None:
                yield node.lineno, name

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = Path(self.path).with_suffix("").parts[: -node.level]
        return ".".join([*parts, *([node.module] if node.module else [])])


def _dynamic_import(node: ast.AST) -> str | None:
    """``importlib.import_module("a.b")`` is an import as well."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    value = node.args[0].value
    return value if called in ("import_module", "__import__") and isinstance(value, str) else None


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    """All Python files below the given top-level folders."""
    found = []
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if "_data" in path.parts or "__pycache__" in path.parts:
                continue
            text = path.read_text(encoding="utf-8")
            relative = path.relative_to(REPOSITORY).as_posix()
            found.append(Source(relative, ast.parse(text, relative), text.count("\n")))
    return tuple(found)
