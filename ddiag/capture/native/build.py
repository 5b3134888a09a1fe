"""Builds the native kernel for one interpreter's torch, into a cache: ``python build.py [--if-missing] [--quiet]``.

Run as a file by the interpreter it builds for (standard library and torch only), never by a training process. About a
minute of one core; the finished library appears in the cache in one go, so that a job finds all of it or none.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODULE = "ddiag_native"
SOURCE = Path(__file__).with_name("kernel.cpp")
CACHE_VARIABLE = "XDG_CACHE_HOME"
_TIMEOUT_S = 900


class BuildError(Exception):
    """The compiler is missing or refused."""


def cache_folder() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache") / "ddiag" / "native"


def cached(torch_version: Any) -> Path:
    """Where the library for this interpreter and this build of torch belongs; *torch_version* is ``torch.version``."""
    source = SOURCE.read_bytes()
    python = sysconfig.get_config_var("SOABI") or f"py{sys.version_info[0]}{sys.version_info[1]}"
    git = str(getattr(torch_version, "git_version", ""))[:12]
    key = hashlib.sha256(source).hexdigest()[:12]
    return cache_folder() / f"torch-{torch_version.__version__}-{git}-{python}" / key / f"{MODULE}.so"


def command(output: Path) -> list[str]:
    """The compiler's command line."""
    import torch

    root = Path(torch.__file__).parent
    compiler = os.environ.get("CXX", "g++")
    headers = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include", sysconfig.get_path("include")]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return [
        *(compiler, "-std=c++20" if _newer(torch.__version__, (2, 10)) else "-std=c++17"),
        *("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"),
        *(f"-DTORCH_EXTENSION_NAME={MODULE}", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-DUSE_DISTRIBUTED", "-DUSE_C10D"),
        *(f"-isystem{path}" for path in headers),
        *(str(SOURCE), "-o", str(output)),
        *(f"-L{root / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"),
    ]


def _newer(version: str, than: tuple[int, int]) -> bool:
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= than


def build() -> Path:
    """Compile into the cache; the library's path. Raises :class:`BuildError`."""
    import torch

    target = cached(torch.version)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as beside:
        unfinished = Path(beside) / target.name
        try:
            done = subprocess.run(
                command(unfinished),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"the compiler did not run: {error}") from error
        if done.returncode != 0:
            raise BuildError(f"the compiler refused:\n{done.stderr[-3000:]}")
        unfinished.replace(target)
    return target


@contextmanager
def only_one(target: Path) -> Iterator[bool]:
    """False when another process builds *target* right now."""
    import fcntl

    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ddiag.capture.native build", description=__doc__)
    parser.add_argument("--if-missing", action="store_true", help="do nothing when it is there")
    parser.add_argument("--quiet", action="store_true", help="say nothing")
    options = parser.parse_args(arguments)
    import torch

    target = cached(torch.version)
    say = (lambda _text: None) if options.quiet else (lambda text: sys.stdout.write(text + "\n"))
    if options.if_missing and target.exists():
        say(f"{target}: already there")
        return 0
    with only_one(target) as mine:
        if not mine:
            say(f"{target}: another process is building it")
            return 0
        try:
            say(f"{build()}: built for torch {torch.__version__}")
        except BuildError as error:
            say(f"ddiag: cannot build the native kernel: {error}")
            return 1
    return 0


if __name__ == "__main__":
    os.nice(10)
    raise SystemExit(main())
