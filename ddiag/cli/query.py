"""``ddiag query``: SQL over the tables of a run."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click

from ddiag.cli.messages import message_options, messages
from ddiag.cli.options import jobs_option
from ddiag.cli.reading import busy, read
from ddiag.cli.writing import show, terminal_options, write_stdout
from ddiag.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

WIDTH_WHEN_PIPED = 4000
"""Nothing is cut or folded when the reader is a program."""


_CHANGES = re.compile(r"(?:\s|--[^\n]*\n)*(?:drop|delete|create|truncate|insert|update|alter)\b", re.IGNORECASE)
"""How a statement begins that would change something."""


@click.command(
    epilog='Example: ddiag query traces/ "SELECT rank, step, step_ms FROM steps_budget ORDER BY step_ms DESC"'
)
@click.argument("evidence", nargs=-1, metavar="RUN... SQL")
@click.option(
    "--tables", "list_tables", is_flag=True, help="Describe tables, columns and units instead (RUN may be left out)."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Of the rows.",
)
@click.option(
    "--rows", type=click.IntRange(min=1), default=100, show_default=True, help="Most rows that a table shows."
)
@jobs_option
@message_options
@click.pass_context
def query(
    ctx: click.Context, *, evidence: tuple[str, ...], list_tables: bool, form: str, rows: int, jobs: int | None
) -> None:
    """Run SQL over the tables of a run.

    RUN is evidence as for analyze, SQL one SELECT statement. Facts are as recorded; derived tables (steps_budget,
    collectives_matched, …) are what the diagnosis rests on. See ddiag query --tables.
    """
    say = messages(ctx)
    if list_tables:
        frames = _frames(ctx, evidence, jobs, derived=True) if evidence else {}
        write_stdout("\n".join(_described(frames)) + "\n")
        return
    if len(evidence) < 2:
        raise UsageError('a run and a statement are needed: ddiag query RUN "SELECT …" (or ddiag query --tables)')
    *run, sql = evidence
    from ddiag.cli.run_tables import needs_analysis

    frames = _frames(ctx, tuple(run), jobs, derived=needs_analysis(re.findall(r"\w+", sql.lower())))
    with busy("Querying", say):
        result = _execute(frames, sql)
    _show(result, form, rows)


def _frames(
    ctx: click.Context, evidence: tuple[str, ...], jobs: int | None, *, derived: bool
) -> dict[str, pl.DataFrame]:
    from ddiag.analysis import derive
    from ddiag.cli.run_tables import all_tables

    say = messages(ctx)
    run = read(evidence, jobs, say)
    with busy("Analyzing", say):
        return all_tables(run, derive(run) if derived else None)


def _execute(frames: Mapping[str, pl.DataFrame], sql: str) -> pl.DataFrame:
    """The rows of *sql*; what polars says about a faulty statement becomes a UsageError."""
    import polars as pl

    if _CHANGES.match(sql):
        raise UsageError("SQL: only SELECT (or WITH … SELECT) makes sense here: nothing of a run can be changed")
    tables = {name: frame.lazy().with_columns(pl.col(pl.Categorical).cast(pl.String)) for name, frame in frames.items()}
    try:
        return pl.SQLContext(tables, eager=True).execute(sql)
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"SQL: {_explained(str(error), frames)}") from error


def _explained(message: str, frames: Mapping[str, pl.DataFrame]) -> str:
    """The first paragraph of polars' message, with what there is to choose from."""
    import difflib

    from ddiag.cli.run_tables import DERIVED

    first = message.strip().split("\n\n")[0]
    missing = re.search(r"relation '([^']+)' was not found", first)
    if missing is None:
        return first
    if missing[1] in DERIVED:
        return f"the evidence of this run does not give {missing[1]}"
    close = difflib.get_close_matches(missing[1], frames, n=1)
    return f"no table {missing[1]!r}" + (f"; did you mean {close[0]}?" if close else f"; there are {', '.join(frames)}")


def _show(frame: pl.DataFrame, form: str, rows: int) -> None:
    if form == "json":
        write_stdout(_as_json(frame))
    elif form == "csv":
        write_stdout(_flat(frame).write_csv())
    else:
        _show_table(frame, rows)


def _as_json(frame: pl.DataFrame) -> str:
    """A list of records; what JSON cannot say (NaN, infinity) is null."""
    import polars as pl
    import polars.selectors as cs

    finite = frame.with_columns(pl.when(cs.float().is_finite()).then(cs.float()))
    return json.dumps(finite.to_dicts(), ensure_ascii=False, allow_nan=False, default=str, indent=1) + "\n"


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Lists as JSON text, as CSV has no lists."""
    import polars as pl

    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    return frame.with_columns(
        pl.Series(name, [json.dumps(value, default=str) for value in frame[name].to_list()], dtype=pl.String)
        for name in nested
    )


def _show_table(frame: pl.DataFrame, rows: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ddiag.reporters.words import clean

    options = terminal_options()
    table = Table(box=box.ASCII if options["ascii_only"] else box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, dtype in frame.schema.items():
        table.add_column(Text(name), justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in frame.head(rows).iter_rows():
        table.add_row(*(Text(_cell(value)) for value in row))
    width = WIDTH_WHEN_PIPED if options["color_system"] is None else options["width"]
    console = Console(width=width, color_system=options["color_system"], highlight=False)
    with console.capture() as capture:
        console.print(table)
        if frame.height > rows:
            console.print(Text(clean(f"{rows:,} of {frame.height:,} rows; --rows N or --format csv shows more"), "dim"))
    show("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def _cell(value: object) -> str:
    from ddiag.reporters.words import clean

    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else clean(value)


def _described(frames: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Every table with its columns, types, units and meanings; with rows when there is a run."""
    from ddiag.cli.run_tables import DERIVED, unit_of
    from ddiag.model.tables import TABLES

    def title(name: str) -> str:
        if not frames:
            return name
        return f"{name} ({frames[name].height:,} rows)" if name in frames else f"{name} (not in this evidence)"

    for table in TABLES.values():
        yield title(table.name)
        yield f"  {table.meaning}"
        for column in table.columns:
            kind = getattr(column.dtype, "__name__", str(column.dtype))
            yield f"    {column.name:20} {kind:12} {column.unit:6} {column.meaning}".rstrip()
        yield ""
    yield "Derived tables"
    yield ""
    for name, derived in DERIVED.items():
        yield title(name)
        yield f"  {derived.meaning}"
        if name in frames:
            for column_name, dtype in frames[name].schema.items():
                yield f"    {column_name:20} {dtype!s:12} {unit_of(column_name):6}".rstrip()
        yield ""
