"""``ddiag export``: a run for other tools."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddiag.cli.messages import message_options, messages
from ddiag.cli.options import jobs_option, limits_option, limits_path, rules_option, steps_option
from ddiag.cli.reading import busy, read
from ddiag.cli.writing import STDOUT, write, write_bytes
from ddiag.errors import UsageError

if TYPE_CHECKING:
    from ddiag.api import Examination


@click.command(epilog="Example: ddiag export traces/ --perfetto job.json.gz, then open it at ui.perfetto.dev")
@click.argument("evidence", nargs=-1, required=True, metavar="EVIDENCE...")
@click.option(
    "--perfetto",
    metavar="FILE",
    help="All ranks on one clock, annotated with findings (.json or .json.gz; - is stdout).",
)
@click.option("--parquet", metavar="DIR", help="Every table of the run, one Parquet file each.")
@rules_option
@limits_option
@steps_option
@jobs_option
@message_options
@click.pass_context
def export(
    ctx: click.Context,
    *,
    evidence: tuple[str, ...],
    perfetto: str | None,
    parquet: str | None,
    rule_folders: tuple[str, ...],
    limits_file: str | None,
    steps: tuple[int, int] | None,
    jobs: int | None,
) -> None:
    """Write a run for Perfetto or as Parquet files."""
    if perfetto is None and parquet is None:
        raise UsageError("say what to write: --perfetto FILE, --parquet DIR or both")
    from ddiag import api

    say = messages(ctx)
    rules = api.rules_for(rule_folders, limits_path(limits_file))
    run = read(evidence, jobs, say)
    with busy("Analyzing", say):
        examination = api.examine(run, rules, steps=steps)
    if perfetto is not None:
        with busy("Writing", say):
            left_out = _write_perfetto(examination, perfetto)
        say.say(
            f"wrote {'the trace' if perfetto == STDOUT else perfetto}" + (f"; left out: {left_out}" if left_out else "")
        )
    if parquet is not None:
        say.say(f"wrote {_write_parquet(examination, Path(parquet))} tables to {parquet}")


def _write_perfetto(examination: Examination, target: str) -> str:
    """Write the trace; returns what it does not show."""
    from ddiag import api
    from ddiag.reporters.perfetto import PerfettoReporter

    reporter = PerfettoReporter(offset_ns=api.clock_offsets(examination))
    text = reporter.render(examination.diagnosis, examination.signals, examination.run)
    if target.endswith(".gz"):
        write_bytes(target, gzip.compress(text.encode("utf-8"), compresslevel=6, mtime=0))
    else:
        write(target, text)
    return reporter.left_out(examination.run)


def _write_parquet(examination: Examination, folder: Path) -> int:
    """Write every table that has rows; returns how many."""
    from ddiag.cli.run_tables import all_tables

    tables = {name: frame for name, frame in all_tables(examination.run, examination.signals).items() if frame.height}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, frame in tables.items():
            frame.write_parquet(folder / f"{name}.parquet")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error
    return len(tables)
