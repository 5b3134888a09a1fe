"""The command group: commands are imported when they are used, so ``ddiag --help`` is instant."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

from ddiag.cli.messages import message_options

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "run": ("ddiag.cli.run", "Run a training job and record it; diagnose it at the end."),
        "analyze": ("ddiag.cli.analyze", "Diagnose a training job from its traces or its run folder."),
        "hang": ("ddiag.cli.hang", "Say who or what stopped a job: the culprit first, on one screen."),
        "doctor": (
            "ddiag.cli.doctor",
            "Check this node: limits, shared memory, disks, network, versions, GPUs and their links.",
        ),
        "bundle": (
            "ddiag.cli.bundle",
            "Collect run folders, logs, dumps and traces, this node's state and the diagnosis into one redacted "
            "archive.",
        ),
        "rules": ("ddiag.cli.rules", "List, explain and check the rules; print the root-cause table."),
        "query": ("ddiag.cli.query", "Run SQL over the tables of a run."),
        "export": ("ddiag.cli.export", "Write a run for Perfetto or as Parquet files."),
    }
)
"""Command -> (module that defines it under its own name, line of help)."""


class ReaderGoneError(Exception):
    """Whoever read stdout has closed it."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and help line, and imports one only to run it."""

    def invoke(self, ctx: click.Context) -> Any:
        """As click does it, but a closed stdout stays tellable from findings (click exits with 1 for both)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(_unknown(args[0]), ctx)
        return super().resolve_command(ctx, args)


def _unknown(word: str) -> str:
    import difflib
    from pathlib import Path

    if Path(word).exists():
        return f"No such command '{word}'. To diagnose it: ddiag analyze {word}"
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    return f"No such command '{word}'." + (f" Did you mean '{close[0]}'?" if close else "")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's signature
    if wanted:
        import ddiag

        click.echo(f"ddiag {ddiag.__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 clean, 1 findings at or above --fail-on, 2 usage or unusable input, 3 internal error.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
@message_options
def group() -> None:
    """Find what slows down or stops distributed training: evidence in, ranked causes with culprit, cost and fix out."""
