"""Reading evidence with a progress bar, for every command that does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddiag.cli.messages import Messages

if TYPE_CHECKING:
    from ddiag.model.run import Run


MOST_NAME = 28
"""Characters of a file name beside the progress bar."""


def read(evidence: Sequence[str], jobs: int | None, messages: Messages) -> Run:
    """Load *evidence*; files that cannot be used are warned about (the rest is used)."""
    from ddiag import api

    if messages.animated:
        run = _with_progress(evidence, jobs)
    else:
        run = api.load(evidence, jobs=jobs)
    for path, why in run.coverage.unreadable:
        messages.warn(f"not used: {path}: {why}")
    for item in run.coverage.inputs:
        messages.detail(f"{item.path}: {item.kind}, {item.events:,} events" + (f" ({item.note})" if item.note else ""))
    return run


def _with_progress(evidence: Sequence[str], jobs: int | None) -> Run:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ddiag import api

    columns = (
        TextColumn("Reading"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, name="")

        def advance(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, name=_short(name))

        return api.load(evidence, jobs=jobs, progress=advance)


def _short(name: str) -> str:
    """The file's own name, cut so that the bar keeps its place; nothing in it is markup."""
    last = name.rstrip("/").rpartition("/")[2]
    return (last if len(last) <= MOST_NAME else f"…{last[1 - MOST_NAME :]}").replace("[", r"\[")


@contextmanager
def busy(words: str, messages: Messages) -> Iterator[None]:
    """Show that something is going on, on a terminal."""
    if not messages.animated:
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(words):
        yield
