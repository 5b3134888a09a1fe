"""Every Python process of a recorded job passes here first (this folder leads PYTHONPATH), and most pass unchanged.

It runs another sitecustomize that it hides, and then waits for somebody to import torch. Standard library only, for any
Python 3; nothing here may raise or write.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_hidden_one() -> None:
    import importlib.machinery
    import importlib.util

    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _stay_first() -> None:
    """What this process becomes has this folder first again, whatever it has put before it.

    ``opentelemetry-instrument`` does so with a sitecustomize that runs no other; this one runs it.
    """
    execv, execve = os.execv, os.execve

    def executed(path: str, argv: "list[str]") -> None:
        os.environ.update(_first_again(os.environ))
        execv(path, argv)

    def executed_with(path: str, argv: "list[str]", env: "dict[str, str]") -> None:  # may be given by these names
        change = _first_again(env)
        execve(path, argv, {**env, **change} if change else env)

    os.execv, os.execve = executed, executed_with  # type: ignore[assignment]


def _first_again(env: "os._Environ[str] | dict[str, str]") -> "dict[str, str]":
    """What to change of *env* so that this folder leads PYTHONPATH, if it stands there at all."""
    try:
        places = env.get("PYTHONPATH", "").split(os.pathsep)
        ours = [place for place in places if place and os.path.abspath(place) == _HERE]
        if ours and places[0] != ours[0]:
            return {"PYTHONPATH": os.pathsep.join([ours[0]] + [place for place in places if place not in ours])}
    except (AttributeError, OSError, TypeError):  # an environment of another kind stays as it is
        return {}
    return {}


class _WaitForTorch:
    """Starts the recorder at the first import of torch, before any of it has run."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torch":
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            try:
                _start()
            except Exception as error:  # noqa: BLE001 - nothing may reach the job
                if os.environ.get("DDIAG_DEBUG") == "1":
                    sys.stderr.write(f"ddiag: cannot start recording: {error!r}\n")


def _start() -> None:
    import json
    from pathlib import Path

    beside = {}
    if os.path.exists(_BESIDE):
        with open(_BESIDE, encoding="utf-8") as file:
            beside = json.load(file)
    run = os.environ.get("DDIAG_RUN") or beside.get("run")
    if not run or not os.path.isdir(run):
        return
    _make_ddiag_importable(beside.get("package") or os.path.dirname(os.path.dirname(_HERE)))
    from ddiag.capture.activate import ACTIVATION

    ACTIVATION.start(Path(run))


def _make_ddiag_importable(package: str) -> None:
    """The very ddiag that started the job, without putting its folder (and its neighbours) on the job's path."""
    if "ddiag" in sys.modules:
        return
    import importlib.util

    init = os.path.join(package, "__init__.py")
    spec = importlib.util.spec_from_file_location("ddiag", init, submodule_search_locations=[package])
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["ddiag"] = module
    spec.loader.exec_module(module)


_BESIDE = os.path.join(_HERE, "ddiag-bootstrap.json")
try:
    if sys.version_info >= (3, 10) and os.environ.get("DDIAG_DISABLE") != "1":
        if "DDIAG_RUN" in os.environ or os.path.exists(_BESIDE):
            sys.meta_path.insert(0, _WaitForTorch())
            _stay_first()
finally:
    _run_the_hidden_one()
