"""Versions of what a training job is made of, allow-listed environment, clock, and processes that block."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from shutil import which

from ddiag.schema.environment import allowed
from ddiag.schema.node import CouldNot, Fact
from ddiag.supervise.node_facts import driver_version
from ddiag.supervise.proc import read_text

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "lightning", "triton", "flash-attn", "numpy", "py-spy")
TOOL_LIMIT_S = 10


def facts() -> Iterator[Fact | CouldNot]:
    """See the module."""
    for name in PACKAGES:
        try:
            yield Fact("package.version", version(name), name)
        except PackageNotFoundError:
            continue
    nccl = sorted({f"{one.name} {one.version}" for one in distributions() if one.name.startswith("nvidia-nccl-")})
    if nccl:
        yield Fact("nccl.packages", ", ".join(nccl))
    preloaded = [name for name in ("LD_PRELOAD", "LD_LIBRARY_PATH") if "nccl" in os.environ.get(name, "").lower()]
    yield Fact("nccl.replaced_by_environment", bool(preloaded))
    driver = driver_version()
    if driver:
        yield Fact("driver.version", driver)
    yield from (Fact("env", value, name) for name, value in sorted(allowed(os.environ).items()))
    yield from _clock()
    yield Fact("process.blocked", len(_in_state("D")))
    yield Fact("process.zombies", len(_in_state("Z")))


def _clock() -> Iterator[Fact | CouldNot]:
    """Whether somebody keeps this node's clock: logs of several nodes are merged by it."""
    if which("timedatectl") is None:
        yield CouldNot("clock synchronisation", "timedatectl is not here; look at chronyc tracking or ntpq -p")
        return
    command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False)
    if done.returncode or done.stdout.strip() not in ("yes", "no"):
        yield CouldNot("clock synchronisation", "timedatectl does not answer here (no systemd in a container)")
        return
    yield Fact("clock.synchronised", done.stdout.strip() == "yes")


def _in_state(letter: str) -> list[int]:
    """Processes in the state *letter* of /proc/PID/stat."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        after_name = read_text(folder / "stat").rpartition(")")[2].split()
        if after_name[:1] == [letter]:
            found.append(int(folder.name))
    return found
