"""``ddiag rules``: the rules themselves, their runbooks, and the root-cause table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddiag.cli.messages import message_options, messages
from ddiag.cli.options import limits_option, limits_path, rules_option
from ddiag.cli.writing import show, terminal_options, write_stdout
from ddiag.errors import RuleError, UsageError

if TYPE_CHECKING:
    from ddiag.rulekit.rule import LoadedRule


@click.group(name="rules")
def rules() -> None:
    """List, explain and check the rules; print the root-cause table."""


def _load(folders: Sequence[str], limits_file: str | None = None) -> tuple[LoadedRule, ...]:
    from ddiag import api

    return api.rules_for(folders, limits_path(limits_file))


@rules.command("list")
@rules_option
@message_options
def list_rules(*, rule_folders: tuple[str, ...]) -> None:
    """One line per rule: id, root cause, and the cause in one sentence."""
    from rich.table import Table
    from rich.text import Text

    from ddiag.reporters.rule_table import family_title

    table = Table.grid(padding=(0, 2, 0, 0))
    family = ""
    for rule in _load(rule_folders):
        if rule.family != family:
            table.add_row(*([""] * 3) if family else ())
            family = rule.family
            table.add_row("", "", Text(family_title(family), "bold"))
        table.add_row(rule.rule.id, rule.rule.root_cause, rule.title)
    _print(table)


@rules.command("show")
@click.argument("rule_id", metavar="ID")
@rules_option
@limits_option
@message_options
def show_rule(*, rule_id: str, rule_folders: tuple[str, ...], limits_file: str | None) -> None:
    """One rule's runbook, needs and limits (as in effect)."""
    import difflib

    from ddiag.reporters.rule_table import rule_page

    loaded = {rule.rule.id: rule for rule in _load(rule_folders, limits_file)}
    rule = loaded.get(rule_id.upper())
    if rule is None:
        close = difflib.get_close_matches(rule_id.upper(), loaded, n=1)
        raise UsageError(f"no rule {rule_id}" + (f"; did you mean {close[0]}?" if close else "; see ddiag rules list"))
    _print_markdown(rule_page(rule))


@rules.command("check")
@click.argument("places", nargs=-1, metavar="[DIR]...")
@rules_option
@limits_option
@message_options
@click.pass_context
def check(
    ctx: click.Context, *, places: tuple[str, ...], rule_folders: tuple[str, ...], limits_file: str | None
) -> None:
    """Check rule files (built-in and those in DIR) and ddiag.toml against the contract."""
    from ddiag.rulekit.loader import reference_problems

    loaded = _load((*places, *rule_folders), limits_file)
    problems = reference_problems(loaded)
    if problems:
        raise RuleError("\n       ".join(problems))
    own = sum(not rule.built_in for rule in loaded)
    messages(ctx).say(f"{len(loaded)} rules are fine" + (f", {own} of them yours" if own else ""))


@rules.command("table")
@rules_option
@message_options
def table(*, rule_folders: tuple[str, ...]) -> None:
    """The root-cause table as Markdown: symptom, cause, evidence, fix, verify."""
    from ddiag.reporters.rule_table import rule_table

    write_stdout(rule_table(_load(rule_folders)))


def _print_markdown(text: str) -> None:
    """Rendered on a colour terminal, as it is elsewhere."""
    options = terminal_options()
    if options["color_system"] is None:
        write_stdout(text)
        return
    from rich.markdown import Markdown

    _print(Markdown(text))


def _print(what: object) -> None:
    from rich.console import Console

    options = terminal_options()
    console = Console(width=min(options["width"], 120), color_system=options["color_system"], highlight=False)
    with console.capture() as capture:
        console.print(what)
    show("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")
