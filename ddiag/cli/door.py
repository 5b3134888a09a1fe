"""The one place where errors become a message and an exit code.

0 clean · 1 findings at or above --fail-on · 2 usage or unusable input · 3 internal error. Ctrl-C gives 130 and a reader
that goes away 141, as the shell would.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import click

from ddiag.cli.group import ReaderGoneError, group
from ddiag.cli.messages import Messages
from ddiag.errors import DdiagError, RuleDefect

CLEAN, FOUND, UNUSABLE, INTERNAL, INTERRUPTED, NO_READER = 0, 1, 2, 3, 130, 141


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every error leaves through here, as one message."""
    messages = Messages()
    _tolerate_unprintable()
    code = CLEAN
    try:
        code = _invoke(arguments, messages)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (ReaderGoneError, BrokenPipeError):
        _forget_stdout()
        return NO_READER
    except OSError as error:
        _forget_stdout()
        if code not in (UNUSABLE, INTERNAL):
            click.echo(f"Error: cannot write to stdout: {error.strerror}", err=True)
        return UNUSABLE
    return code


def _invoke(arguments: Sequence[str] | None, messages: Messages) -> int:
    try:
        code = group.main(args=arguments, prog_name="ddiag", obj=messages, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return UNUSABLE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (ReaderGoneError, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - the last door; polars' panics are no Exceptions
        return _explain(error, messages, arguments)
    return code if isinstance(code, int) else CLEAN


def _explain(error: BaseException, messages: Messages, arguments: Sequence[str] | None) -> int:
    """What the user did wrong is one line; what ddiag did wrong is said to be a defect."""
    if isinstance(error, DdiagError) and not isinstance(error, RuleDefect):
        click.echo(f"Error: {error}", err=True)
        return UNUSABLE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        click.echo(f"Error: cannot write: {error.strerror}", err=True)
        return UNUSABLE
    from ddiag.cli.crash import report_crash

    report_crash(error, messages, sys.argv[1:] if arguments is None else list(arguments))
    return INTERNAL


def _tolerate_unprintable() -> None:
    """A terminal that lacks a character shows '?' instead of ending in UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
