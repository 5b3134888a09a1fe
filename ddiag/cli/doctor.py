"""``ddiag doctor``: look at this node before a job runs on it, or compare the reports of many nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddiag.cli.messages import message_options, messages
from ddiag.cli.writing import STDOUT, show, terminal_options, write
from ddiag.errors import InputError, UsageError

if TYPE_CHECKING:
    from ddiag.model.preflight import Check, NodeReport
    from ddiag.reporters.doctor import DoctorReporter


@click.command(
    epilog="Example: srun --ntasks-per-node=1 ddiag doctor --json 'node-{host}.json'; ddiag doctor node-*.json"
)
@click.argument("reports", nargs=-1, metavar="[REPORT.json]...")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the node's facts as JSON; {host} is the node's name, - is stdout.",
)
@click.option("--fail-on", type=click.Choice(["warn", "fail"]), help="Exit with 1 when a check is this bad or worse.")
@message_options
@click.pass_context
def doctor(ctx: click.Context, *, reports: tuple[str, ...], json_file: str | None, fail_on: str | None) -> int:
    """Check this node: limits, shared memory, disks, network, versions, GPUs and their links.

    Reads only; nothing is changed, and nothing runs on a GPU. With REPORT files of many nodes (--json) it checks each
    and says which node is unlike the others.
    """
    from ddiag.analysis.preflight import judge

    if reports and json_file:
        raise UsageError("--json writes the report of this node; it cannot be combined with REPORT files")
    if reports:
        return _several([_read(path) for path in reports], fail_on)
    from ddiag.supervise.survey import survey

    report = survey()
    checks = judge(report)
    target = None if json_file is None else json_file.replace("{host}", report.host)
    if target is not None:
        from ddiag.schema.node import to_json

        write(target, to_json(report))
    if target != STDOUT:
        show(_reporter().one(report, checks))
    if target not in (None, STDOUT):
        messages(ctx).say(f"wrote {target}")
    return _code(checks, fail_on)


def _several(reports: Sequence[NodeReport], fail_on: str | None) -> int:
    """Each node's troubles, then who is unlike the others."""
    from ddiag.analysis.preflight import judge, odd_ones_out
    from ddiag.model.preflight import Outcome

    reporter = _reporter()
    judged = [(report, judge(report)) for report in reports]
    for report, checks in judged:
        if len(reports) == 1 or any(check.outcome is Outcome.FAIL for check in checks):
            show(reporter.one(report, checks) + "\n")
    if len(reports) > 1:
        show(reporter.several(reports, odd_ones_out(reports)))
    return max(_code(checks, fail_on) for _, checks in judged)


def _reporter() -> DoctorReporter:
    from ddiag.reporters.doctor import DoctorReporter

    return DoctorReporter(**terminal_options())


def _read(path: str) -> NodeReport:
    from ddiag.schema.node import from_json

    try:
        return from_json(Path(path).read_bytes(), path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error


def _code(checks: Sequence[Check], fail_on: str | None) -> int:
    from ddiag.model.preflight import Outcome

    if fail_on is None:
        return 0
    return int(any(check.outcome.order <= Outcome(fail_on).order for check in checks))
