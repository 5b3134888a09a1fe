"""``ddiag analyze``: from evidence to a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from ddiag.cli.messages import Messages, message_options, messages
from ddiag.cli.options import jobs_option, limits_option, limits_path, rules_option, steps_option
from ddiag.cli.reading import busy, read
from ddiag.cli.writing import STDOUT, show, terminal_options, write
from ddiag.errors import UsageError

if TYPE_CHECKING:
    from ddiag.api import Examination
    from ddiag.rulekit.diagnosis import Diagnosis

DEFAULT_HTML = "ddiag-report.html"


@dataclass(frozen=True)
class Outputs:
    """Where each report goes; None = not written."""

    html: str | None
    json: str | None
    markdown: str | None

    @property
    def stdout_taken(self) -> bool:
        """A report goes to stdout, so nothing else may."""
        return STDOUT in (self.html, self.json, self.markdown)


@click.command(epilog="Example: ddiag analyze traces/ --json diagnosis.json --fail-on warning")
@click.argument("evidence", nargs=-1, required=True, metavar="EVIDENCE...")
@click.option("--html", metavar="FILE", help=f"Write the HTML report here.  [default: {DEFAULT_HTML}]")
@click.option("--no-html", is_flag=True, help="Do not write an HTML report.")
@click.option("--json", "json_file", metavar="FILE", help="Write the diagnosis as JSON; - is stdout.")
@click.option("--markdown", metavar="FILE", help="Write the diagnosis as Markdown, for an issue; - is stdout.")
@rules_option
@limits_option
@steps_option
@jobs_option
@click.option(
    "--fail-on",
    type=click.Choice(["info", "warning", "critical"]),
    help="Exit with 1 when there is a finding this severe or worse.",
)
@message_options
@click.pass_context
def analyze(
    ctx: click.Context,
    *,
    evidence: tuple[str, ...],
    html: str | None,
    no_html: bool,
    json_file: str | None,
    markdown: str | None,
    rule_folders: tuple[str, ...],
    limits_file: str | None,
    steps: tuple[int, int] | None,
    jobs: int | None,
    fail_on: str | None,
) -> int:
    """Diagnose a training job from its traces or its run folder.

    EVIDENCE is any mix of files, folders, globs and URLs: run folders of ddiag run, PyTorch (Kineto) traces, one per
    rank, as .json, .json.gz, .json.zst or .zip, and TensorFlow profiler traces. What a file is, and of which rank, is
    read from its content.

    Prints the diagnosis, most urgent first, and writes an HTML report.
    """
    outputs = _outputs(html, json_file, markdown, no_html=no_html)
    say = messages(ctx)
    from ddiag import api

    rules = api.rules_for(rule_folders, limits_path(limits_file))
    run = read(evidence, jobs, say)
    with busy("Analyzing", say):
        examination = api.examine(run, rules, steps=steps)
    for failure in examination.diagnosis.rule_failures:
        say.warn(failure)
    _report(examination, outputs, say)
    return 1 if _fails(examination.diagnosis, fail_on) else 0


def _outputs(html: str | None, json_file: str | None, markdown: str | None, *, no_html: bool) -> Outputs:
    if html and no_html:
        raise UsageError("--html and --no-html exclude each other")
    given = [name for name in (html, json_file, markdown) if name is not None]
    if len(set(given)) < len(given):
        raise UsageError("two reports cannot go to the same place; give each its own file")
    return Outputs(None if no_html else html or DEFAULT_HTML, json_file, markdown)


def _report(examination: Examination, outputs: Outputs, say: Messages) -> None:
    """Write the files, then print; a file that cannot be written must not cost the diagnosis."""
    from ddiag.reporters.terminal import TerminalReporter

    written, errors = [], []
    for target, text in _rendered(examination, outputs, say):
        try:
            write(target, text)
            written.append(target)
        except UsageError as error:
            errors.append(str(error))
    if outputs.stdout_taken:
        for path in written:
            if path != STDOUT:
                say.detail(f"wrote {path}")
    else:
        reporter = TerminalReporter(written=tuple(written), **terminal_options())
        show(reporter.render(examination.diagnosis, examination.signals, examination.run))
    if errors:
        raise UsageError("; ".join(errors))


def _rendered(examination: Examination, outputs: Outputs, say: Messages) -> Iterator[tuple[str, str]]:
    """(where to, text) of every report asked for."""
    parts = (examination.diagnosis, examination.signals, examination.run)
    if outputs.html is not None:
        from ddiag.reporters.html import HtmlReporter

        now = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        with busy("Drawing the report", say):
            page = HtmlReporter(generated_at=now).render(*parts)
        yield outputs.html, page
    if outputs.json is not None:
        from ddiag.reporters.json import JsonReporter

        yield outputs.json, JsonReporter().render(*parts)
    if outputs.markdown is not None:
        from ddiag.reporters.markdown import MarkdownReporter

        yield outputs.markdown, MarkdownReporter().render(*parts)


def _fails(diagnosis: Diagnosis, fail_on: str | None) -> bool:
    from ddiag.rulekit.finding import Severity

    worst = diagnosis.worst()
    return fail_on is not None and worst is not None and worst.order <= Severity(fail_on).order
