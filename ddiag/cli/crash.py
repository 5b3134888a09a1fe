"""What is left of an internal error: a short message, and a file to attach to a report."""

from __future__ import annotations

import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

import ddiag
from ddiag.cli.messages import Messages

PACKAGES = ("polars", "numpy", "msgspec", "isal", "zstandard", "plotly", "rich", "click", "jinja2")


def report_crash(error: BaseException, messages: Messages, arguments: Sequence[str]) -> None:
    """Tell what failed on stderr; with --verbose the traceback, else a file that holds it."""
    details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    click.echo(f"Internal error: {words}", err=True)
    click.echo("This is a defect in ddiag, not in your job or its evidence.", err=True)
    if messages.verbose:
        click.echo(details, err=True)
        return
    try:
        bundle = _write_bundle(details, arguments)
    except OSError:
        click.echo("Run the same command with --verbose and attach its output to a bug report.", err=True)
        return
    click.echo(
        f"Please report it and attach {bundle} (versions, command line and traceback; none of your trace's contents).",
        err=True,
    )


def _write_bundle(details: str, arguments: Sequence[str]) -> Path:
    lines = [
        f"ddiag {ddiag.__version__}",
        f"python {platform.python_version()} on {platform.platform()}",
        *(f"{name} {_version(name)}" for name in PACKAGES),
        f"command: ddiag {shlex.join(arguments)}",
        f"encoding: {sys.getfilesystemencoding()}",
        "",
        details,
    ]
    with tempfile.NamedTemporaryFile(
        "w", prefix="ddiag-crash-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write("\n".join(lines))
    return Path(file.name)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
