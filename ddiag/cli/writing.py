"""Writing results: whole files or none, '-' for stdout, and what the terminal can show."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ddiag.errors import UsageError

if TYPE_CHECKING:
    from ddiag.reporters.terminal import ColorSystem

STDOUT = "-"


def write(target: str, text: str) -> None:
    """Write *text* as UTF-8 to the file *target*, or to stdout for '-'. Raises UsageError when that is impossible."""
    if target == STDOUT:
        write_stdout(text)
    else:
        write_bytes(target, text.encode("utf-8", errors="replace"))


def write_bytes(target: str, data: bytes) -> None:
    """Write *data* to the file *target*, whole or not at all. Raises UsageError when that is impossible."""
    path = Path(target)
    try:
        if path.exists() and not path.is_file():  # a pipe or /dev/null
            path.write_bytes(data)
        else:
            _replace(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error


def _replace(path: Path, data: bytes) -> None:
    """Write beside *path* and rename, so that a reader never sees half a report and a failure leaves the old one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_stdout(text: str) -> None:
    """UTF-8 whatever the locale says: JSON, CSV and Markdown are for programs."""
    with _stdout() as stdout:
        buffer = getattr(stdout, "buffer", None)
        if buffer is None:
            stdout.write(text)
        else:
            stdout.flush()
            buffer.write(text.encode("utf-8", errors="replace"))
            buffer.flush()


def show(text: str) -> None:
    """Print *text* for a person, in the encoding of the terminal (click.echo would insist on UTF-8)."""
    with _stdout() as stdout:
        stdout.write(text)


@contextmanager
def _stdout() -> Iterator[TextIO]:
    """Stdout to write to. Raises UsageError when it is closed or its disk is full."""
    if sys.stdout is None:
        raise UsageError("stdout is closed, so the result cannot be printed")
    try:
        yield sys.stdout
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write to stdout: {error.strerror}") from error


def terminal_options() -> dict[str, Any]:
    """Width, colour and characters of stdout, as options of TerminalReporter."""
    import shutil

    width = max(shutil.get_terminal_size((80, 24)).columns, 40)
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return {"width": width, "color_system": _color_system(), "ascii_only": not encoding.startswith("utf")}


def _color_system() -> ColorSystem | None:
    """None when stdout is no terminal, or NO_COLOR is set."""
    if os.environ.get("NO_COLOR") or sys.stdout is None or not sys.stdout.isatty():
        return None
    from rich.console import Console

    system = Console(file=sys.stdout).color_system
    match system:
        case "standard" | "256" | "truecolor":
            return system
        case _:
            return None
