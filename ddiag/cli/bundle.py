"""``ddiag bundle``: one redacted archive of a job's evidence, to attach to an incident."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddiag.cli.messages import Messages, message_options, messages
from ddiag.cli.reading import busy
from ddiag.cli.writing import write_stdout
from ddiag.errors import DdiagError, UsageError

if TYPE_CHECKING:
    from ddiag.ingest.bundle import Bundled, Item

SHOWN = 8


@click.command(epilog="Example: ddiag bundle ddiag-runs/train-20260101-120000-4711 slurm-77.out -o incident.zip")
@click.argument("evidence", nargs=-1, required=True, metavar="EVIDENCE...")
@click.option("--output", "-o", metavar="FILE", help="The archive to write (.zip).")
@click.option("--dry-run", is_flag=True, help="Only list what would go in, and what would not.")
@click.option(
    "--project", metavar="DIR", help="Paths below DIR are kept (as /project/…).  [default: the current folder]"
)
@click.option("--no-node", is_flag=True, help="Leave out the state of this node (what ddiag doctor finds).")
@message_options
@click.pass_context
def bundle(
    ctx: click.Context,
    *,
    evidence: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    project: str | None,
    no_node: bool,
) -> None:
    """Collect run folders, logs, dumps and traces, this node's state and the diagnosis into one redacted archive.

    Tokens, keys and passwords are removed; user names, e-mail and network addresses and paths outside the project are
    replaced, the same one always by the same word. ddiag analyze FILE reads the archive back with the same diagnosis.
    """
    if not dry_run and output is None:
        raise UsageError("say where to write the archive: -o FILE (or --dry-run to see what would go in)")
    from ddiag.ingest.bundle import plan

    items = plan(evidence)
    if dry_run:
        write_stdout(_listing(items))
        return
    assert output is not None
    say = messages(ctx)
    with busy("Bundling", say):
        bundled = _write(items, Path(output), project, _told(evidence, with_node=not no_node))
    _report(bundled, output, say)


def _write(items: Sequence[Item], target: Path, project: str | None, told: dict[str, Any]) -> Bundled:
    from ddiag.ingest.bundle import write_bundle
    from ddiag.schema.redaction import Redactor

    redactor = Redactor(str(Path(project or ".").resolve()), (_user(),))
    try:
        return write_bundle(items, target, redactor, told)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error


def _user() -> str:
    """Who runs this; empty where the system does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _told(evidence: Sequence[str], *, with_node: bool) -> dict[str, Any]:
    """The diagnosis of now, and the node's state, as the archive's own notes."""
    import ddiag
    from ddiag import api

    told: dict[str, Any] = {"ddiag_version": ddiag.__version__}
    try:
        told["diagnosis"] = api.diagnose(api.load(evidence)).to_dict()
    except DdiagError as error:
        told["diagnosis"] = {"error": str(error)}
    if with_node:
        from ddiag.schema.node import to_json
        from ddiag.supervise.survey import survey

        told["node"] = json.loads(to_json(survey()))
    return told


def _listing(items: Sequence[Item]) -> str:
    lines = [f"{item.source.bytes:>14,}  {item.name}" for item in items if item.how]
    lines += [f"{'left out':>14}  {item.source.label}: {item.why_not}" for item in items if not item.how]
    return "\n".join(lines) + "\n"


def _report(bundled: Bundled, output: str, say: Messages) -> None:
    replaced = ", ".join(f"{number:,} {what}" for what, number in sorted(bundled.replaced.items())) or "nothing"
    say.say(f"wrote {output}: {len(bundled.kept)} files, {Path(output).stat().st_size:,} bytes; replaced: {replaced}")
    for item in bundled.left_out[:SHOWN]:
        say.warn(f"left out: {item.source.label}: {item.why_not}")
    if len(bundled.left_out) > SHOWN:
        say.warn(f"left out: {len(bundled.left_out) - SHOWN} more files (listed in the archive's bundle.json)")
