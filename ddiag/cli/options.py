"""Options and argument types that several commands share."""

from __future__ import annotations

import re
from pathlib import Path

import click

DEFAULT_LIMITS = "ddiag.toml"
_ENDLESS = 2**62

rules_option = click.option(
    "--rules",
    "rule_folders",
    metavar="DIR",
    multiple=True,
    help="Add the rules of this folder (or file); may be given several times.",
)
limits_option = click.option(
    "--limits",
    "limits_file",
    metavar="FILE",
    help=f"Thresholds, [limits] in TOML.  [default: ./{DEFAULT_LIMITS} if there is one]",
)
jobs_option = click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes that read files.  [default: one per CPU]"
)


def limits_path(given: str | None) -> str | None:
    """The limits file to use: the one given, else ``ddiag.toml`` of the current folder when there is one."""
    if given is not None:
        return given
    return DEFAULT_LIMITS if Path(DEFAULT_LIMITS).is_file() else None


def step_range(ctx: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """'A:B' as (first, last), both included; 'A:' and ':B' are open, 'A' is one step."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d*)(:?)(\d*)", value)
    if match is None or not (match[1] or match[3]):
        raise click.BadParameter(f"{value!r} is no range of steps; write for example 10:20.", ctx, option)
    first = int(match[1] or 0)
    last = int(match[3]) if match[3] else _ENDLESS if match[2] else first
    if last < first:
        raise click.BadParameter(f"{value!r} ends before it begins; write for example 10:20.", ctx, option)
    return first, last


def hang_after(ctx: click.Context, option: click.Parameter, value: str) -> float | None:
    """Seconds without progress; None for 'auto'."""
    if value == "auto":
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < _ENDLESS:
        raise click.BadParameter(f"{value!r} is neither auto nor a number of seconds.", ctx, option)
    return seconds


steps_option = click.option(
    "--steps",
    metavar="A:B",
    callback=step_range,
    help="Look at these steps only, both ends included; nothing of them is left out as warm-up.",
)
