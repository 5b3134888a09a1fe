"""What goes to stderr: messages, warnings, progress; and the two options that govern it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Messages:
    """How talkative a command is; one per invocation, shared by all of it."""

    quiet: bool = False
    verbose: bool = False

    def say(self, text: str) -> None:
        """What a person may like to know; --quiet hides it."""
        if not self.quiet:
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """What a person must know."""
        click.echo(f"Warning: {text}", err=True)

    def detail(self, text: str) -> None:
        """Only with --verbose."""
        if self.verbose and not self.quiet:
            click.echo(text, err=True)

    @property
    def animated(self) -> bool:
        """Whether progress may be drawn: on a terminal, without --quiet and NO_COLOR."""
        return not self.quiet and sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def message_options(command: F) -> F:
    """Add --quiet and --verbose, which set :class:`Messages` of the context."""
    for name, short, words in (
        ("verbose", "-v", "Say more, and show tracebacks of internal errors."),
        ("quiet", "-q", "Only results and errors; no messages, no progress."),
    ):
        option = click.option(f"--{name}", short, is_flag=True, expose_value=False, callback=_remember, help=words)
        command = option(command)
    return command


def _remember(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's signature
    if wanted and option.name:
        setattr(messages(ctx), option.name, True)


def messages(ctx: click.Context) -> Messages:
    """The messages of this invocation."""
    return ctx.ensure_object(Messages)
