"""Limits that keep the code readable; they may be lowered, not raised."""

from __future__ import annotations

import ast
import re

from tests.arch.sources import REPOSITORY, Source, sources

MAX_FILE_LINES = 320
MAX_FUNCTION_LINES = 60
FUNCTION_LINES_P95 = 45
DECLARATIONS = {"ddiag/model/signals.py": 480}
"""Files that only declare: one dataclass after another, which belong side by side."""
DOORS = {
    "ddiag/cli/door.py": 1,
    "ddiag/capture/door.py": 6,
    "ddiag/capture/bootstrap/sitecustomize.py": 1,
    "ddiag/supervise/door.py": 1,
}
"""The only files that may catch everything, and how often: there it is reported, nowhere is it swallowed."""
PICKLES = {"ddiag/ingest/flight_pickle.py", "ddiag/ingest/bundle.py"}
"""The first alone unpickles, with an unpickler that knows no name and no call; the second writes what that read."""

_ALL = sources("ddiag", "rules", "tools")
_PRODUCT = sources("ddiag", "rules")


def _functions(source: Source) -> list[tuple[str, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(source.tree) if isinstance(node, kinds)]
    return [(f"{source.path}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1) for node in found]


def _calls(source: Source) -> list[tuple[str, str]]:
    """(where, what is called) for every call that importing or using the file can make."""
    body = [node for node in source.tree.body if not _only_when_run(node)]
    nodes = [node for top in body for node in ast.walk(top) if isinstance(node, ast.Call)]
    return [(f"{source.path}:{node.lineno}", ast.unparse(node.func)) for node in nodes]


def _only_when_run(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def _nothing(breaches: list[str]) -> None:
    assert not breaches, "\n".join(breaches)


def test_files_stay_short() -> None:
    limits = [(source, DECLARATIONS.get(source.path, MAX_FILE_LINES)) for source in _ALL]
    _nothing([f"{s.path}: {s.lines} lines, at most {limit}" for s, limit in limits if s.lines > limit])


def test_a_function_fits_a_screen() -> None:
    everything = [function for source in _ALL for function in _functions(source)]
    _nothing([f"{name}: {lines} lines" for name, lines in everything if lines > MAX_FUNCTION_LINES])


def test_nearly_all_functions_are_much_shorter() -> None:
    lengths = sorted(lines for source in _ALL for _, lines in _functions(source))
    assert lengths[int(len(lengths) * 0.95)] <= FUNCTION_LINES_P95


def test_nothing_is_swallowed() -> None:
    for source in _ALL:
        broad = [node.lineno for node in ast.walk(source.tree) if isinstance(node, ast.ExceptHandler) and _broad(node)]
        assert len(broad) <= DOORS.get(source.path, 0), f"{source.path}: broad except at lines {broad}"


def _broad(handler: ast.ExceptHandler) -> bool:
    """Catches everything and raises nothing itself."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {getattr(node, "id", None) for node in caught}
    again = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    return (handler.type is None or bool(names & {"Exception", "BaseException"})) and not again


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"#.*\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    every = sources("ddiag", "rules", "tools", "tests")
    _nothing([s.path for s in every if marks.search((REPOSITORY / s.path).read_text(encoding="utf-8"))])


def test_only_the_command_line_prints_or_exits() -> None:
    inner = [source for source in _PRODUCT if source.room != "cli" and not source.path.endswith("__main__.py")]
    _nothing([f"{at} {what}" for s in inner for at, what in _calls(s) if what in ("print", "sys.exit", "os._exit")])


def test_evidence_is_never_executed() -> None:
    """Traces and dumps come from anywhere: no unpickling but of plain data, no eval, no shell."""
    careful = [source for source in _PRODUCT if source.path not in PICKLES]
    imported = [(source.path, name.split(".")[0]) for source in careful for _, name in source.imports()]
    _nothing([f"{at} imports {name}" for at, name in imported if name in ("pickle", "marshal", "shelve", "dill")])
    called = [call for source in _PRODUCT for call in _calls(source)]
    _nothing(
        [
            f"{at} calls {what}"
            for at, what in called
            if what in ("eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads")
        ]
    )
