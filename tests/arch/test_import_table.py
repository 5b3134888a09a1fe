"""Every import points one way, and a heavy library lives in one room."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.arch.sources import Source, sources

ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "_paths": set(),
    "schema": {"errors"},
    "capture": {"schema", "errors"},
    "supervise": {"__init__", "schema", "errors"},
    "model": {"schema", "errors"},
    "ingest": {"schema", "model", "errors"},
    "analysis": {"model", "errors"},
    "plan": {"model", "errors"},
    "rulekit": {"model", "errors"},
    "rules": {"model", "rulekit"},
    "plots": {"model", "rulekit", "errors"},
    "reporters": {"model", "rulekit", "plots", "errors", "_paths"},
    "api": {
        "__init__",
        "ingest",
        "model",
        "analysis",
        "plan",
        "rulekit",
        "plots",
        "reporters",
        "errors",
        "_paths",
        "schema",
    },
    "__init__": {"api", "capture"},
    "__main__": {"cli"},
}
"""Which other rooms of ddiag a room may import; ``cli``, the outermost, may import all."""

HOMES: dict[str, set[str]] = {
    "polars": {"model", "ingest", "analysis", "plan", "rulekit", "rules", "plots", "reporters", "api", "cli"},
    "numpy": {"model", "ingest", "analysis", "plan", "plots"},
    "msgspec": {"ingest", "schema"},
    "isal": {"ingest"},
    "zstandard": {"ingest"},
    "fsspec": {"ingest", "supervise"},
    "plotly": {"plots"},
    "jinja2": {"reporters"},
    "markupsafe": {"reporters"},
    "rich": {"reporters", "cli"},
    "click": {"cli"},
    "tomli": {"rulekit", "cli"},
    "hta": {"ingest"},
    "pandas": {"ingest"},
    "torch": {"capture"},
    "lightning": {"capture"},
    "pytorch_lightning": {"capture"},
    "transformers": {"capture"},
    "deepspeed": {"capture"},
    "nvtx": {"capture"},
    "pynvml": {"supervise"},
    "psutil": {"supervise"},
    "prometheus_client": {"supervise"},
    "opentelemetry": {"supervise"},
}
"""Where each third-party package belongs; a package that is not here belongs nowhere yet."""

HANDOVER_FILES = {"ddiag/ingest/hta.py"}
"""HTA and pandas are imported lazily, in the one file that hands a run over."""


def _breaches(source: Source) -> list[str]:
    found = []
    for line, name in source.imports():
        top, *rest = name.split(".")
        where = f"{source.path}:{line} imports {name}"
        if top == "ddiag":
            breach = _room_breach(source, rest)
        elif top in sys.stdlib_module_names:
            breach = None
        else:
            breach = _package_breach(source, top)
        if breach:
            found.append(f"{where}: {breach}")
    return found


def _room_breach(source: Source, rest: list[str]) -> str | None:
    if source.room == "cli":
        return None
    target = rest[0] if rest else "__init__"
    if target in ("__version__", source.room):
        return None
    allowed = ROOMS.get(source.room)
    if allowed is None:
        return f"the room {source.room} is not in the import table"
    return None if target in allowed else f"{source.room} may import only {sorted(allowed) or 'nothing'} of ddiag"


def _package_breach(source: Source, package: str) -> str | None:
    homes = HOMES.get(package)
    if homes is None:
        return f"{package} belongs nowhere yet; decide on a room, and on a dependency in pyproject.toml"
    if source.room not in homes:
        return f"{package} belongs in {' or '.join(sorted(homes))}"
    if package in ("hta", "pandas") and source.path not in HANDOVER_FILES:
        return f"{package} belongs in {' or '.join(sorted(HANDOVER_FILES))}"
    return None


def test_a_room_imports_only_what_the_table_allows() -> None:
    breaches = [breach for source in sources("ddiag", "rules") for breach in _breaches(source)]
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("ddiag/model/x.py", "import plotly.graph_objects", "plotly belongs in plots"),
        ("ddiag/analysis/x.py", "def f():\n    import torch", "torch belongs in capture"),
        ("ddiag/model/x.py", "from ddiag import ingest", "model may import only ['errors', 'schema'] of ddiag"),
        ("ddiag/model/x.py", "from ..ingest import load", "model may import only ['errors', 'schema'] of ddiag"),
        ("rules/dd1_input/x.py", "from ddiag.analysis import derive", "rules may import only"),
        ("ddiag/ingest/kineto.py", "import importlib\nimportlib.import_module('hta.x')", "ddiag/ingest/hta.py"),
        ("ddiag/analysis/x.py", "import networkx", "networkx belongs nowhere yet"),
        ("ddiag/errors.py", "import ddiag.model", "errors may import only nothing"),
    ],
)
def test_a_breach_is_named_with_the_place_where_the_import_belongs(path: str, code: str, message: str) -> None:
    (breach,) = _breaches(Source(path, ast.parse(code), 1))
    assert message in breach


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_ddiag_loads_nothing_heavy() -> None:
    assert not _loaded_by("import ddiag") & {"polars", "numpy", "plotly", "torch", "click", "rich", "jinja2"}


def test_the_command_line_starts_without_torch_plotly_and_polars() -> None:
    assert not _loaded_by("import ddiag.cli") & {"torch", "plotly", "polars", "pandas"}


def test_an_analysis_never_loads_torch() -> None:
    assert not _loaded_by("import ddiag.api, ddiag.reporters.html") & {"torch", "deepspeed", "pandas", "pynvml"}
