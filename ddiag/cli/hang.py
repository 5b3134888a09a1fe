"""``ddiag hang``: who or what stopped a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddiag.cli.messages import Messages, message_options, messages
from ddiag.cli.options import jobs_option, limits_option, limits_path, rules_option
from ddiag.cli.reading import busy, read
from ddiag.cli.writing import STDOUT, show, terminal_options, write
from ddiag.errors import UsageError

if TYPE_CHECKING:
    from ddiag.api import Examination


@click.command(
    epilog="Example: ddiag hang /logs/job-4711/ flight/   or, while it hangs: ddiag hang --live ddiag-runs/RUN"
)
@click.argument("evidence", nargs=-1, required=True, metavar="EVIDENCE...")
@click.option("--live", is_flag=True, help="EVIDENCE is the run folder of a running job: take fresh stacks and states.")
@click.option("--html", metavar="FILE", help="Write the report here as well.")
@click.option("--json", "json_file", metavar="FILE", help="Write the diagnosis as JSON; - is stdout.")
@rules_option
@limits_option
@jobs_option
@message_options
@click.pass_context
def hang(
    ctx: click.Context,
    *,
    evidence: tuple[str, ...],
    live: bool,
    html: str | None,
    json_file: str | None,
    rule_folders: tuple[str, ...],
    limits_file: str | None,
    jobs: int | None,
) -> int:
    """Say who or what stopped a job: the culprit first, on one screen.

    EVIDENCE is whatever there is of the job: run folders of ddiag run, Flight Recorder dumps, logs, stacks (py-spy),
    kernel messages. What a file is, is read from its content.
    """
    say = messages(ctx)
    from ddiag import api

    rules = api.rules_for(rule_folders, limits_path(limits_file))
    if live:
        _capture(evidence, say)
    run = read(_lightest(evidence), jobs, say)
    with busy("Analyzing", say):
        examination = api.examine(run, rules)
    for failure in examination.diagnosis.rule_failures:
        say.warn(failure)
    _report(examination, html, json_file)
    return 0


def _lightest(evidence: Sequence[str]) -> list[str]:
    """A run folder whose ranks hang was captured: the captures say it all, the recordings of a thousand ranks are
    gigabytes."""
    from ddiag.schema.hang import newest_evidence

    chosen: list[str] = []
    for one in evidence:
        chosen += [str(path) for path in newest_evidence(Path(one))] or [one]
    return chosen


def _capture(evidence: Sequence[str], say: Messages) -> None:
    """Fresh captures from all supervisors of the run; raises UsageError when nobody answers."""
    from ddiag.supervise.live import capture_now

    if len(evidence) != 1:
        raise UsageError("--live takes one run folder")
    with busy("Asking the job's supervisors", say):
        told = capture_now(Path(evidence[0]))
    for line in told:
        say.say(line)


def _report(examination: Examination, html: str | None, json_file: str | None) -> None:
    from ddiag.reporters.hang_terminal import HangReporter
    from ddiag.reporters.hang_view import hang_view
    from ddiag.reporters.html import HtmlReporter
    from ddiag.reporters.json import JsonReporter

    parts = (examination.diagnosis, examination.signals, examination.run)
    if json_file is not None:
        write(json_file, JsonReporter().render(*parts))
    if html is not None:
        write(html, HtmlReporter().render(*parts))
    if STDOUT not in (html, json_file):
        view = hang_view(examination.signals, examination.run)
        written = tuple(path for path in (html, json_file) if path is not None)
        show(HangReporter(view=view, written=written, **terminal_options()).render(*parts))
