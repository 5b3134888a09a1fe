"""Evidence in, facts out: reads profiler traces of one job into a :class:`ddiag.model.run.Run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddiag.errors import InputError
from ddiag.ingest.assemble import assemble
from ddiag.ingest.discover import discover
from ddiag.ingest.read import Refused
from ddiag.ingest.trace import Trace
from ddiag.ingest.workers import read_all
from ddiag.model.run import Run

_SHOWN = 12
"""Files listed in an error; hundreds would hide the point."""


def load(
    paths: Sequence[str], *, jobs: int | None = None, progress: Callable[[int, int, str], None] | None = None
) -> Run:
    """Read *paths* (files, folders, patterns, URLs; plain, gz, zst or zip) of one job.

    *jobs*: worker processes; None chooses. *progress* is called with (files done, files in all, path).
    Raises :class:`~ddiag.errors.InputError` when nothing is usable; what else was wrong is in ``run.coverage``.
    """
    found = discover(paths)
    outcomes = read_all(found.sources, jobs, progress)
    traces = [outcome for outcome in outcomes if isinstance(outcome, Trace)]
    unreadable, skipped = list(found.unreadable), []
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            if outcome.is_trace or outcome.source.explicit:
                unreadable.append((outcome.source.label, outcome.why))
            else:
                skipped.append(f"{outcome.source.label} skipped: {outcome.why}")
    if not traces:
        raise InputError(_nothing_usable(paths, unreadable, skipped))
    return assemble(traces, unreadable, skipped)


def _nothing_usable(paths: Sequence[str], unreadable: list[tuple[str, str]], skipped: list[str]) -> str:
    lines = [f"{path}: {why}" for path, why in unreadable] + skipped
    if not lines:
        return "no input given" if not paths else f"nothing to read in {', '.join(map(str, paths))}"
    if len(lines) == 1:
        return lines[0]
    more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join(["no usable trace:", *(f"  {line}" for line in [*lines[:_SHOWN], *more])])
