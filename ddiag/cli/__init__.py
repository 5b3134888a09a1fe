"""The command ``ddiag``. Only this room prints or exits."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (see :mod:`ddiag.cli.door`)."""
    from ddiag.cli.door import run

    return run(arguments)
