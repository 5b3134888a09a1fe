"""Evidence in, facts out: reads whatever there is of one job (traces, a recording, logs, dumps, tool outputs) into a
:class:`ddiag.model.run.Run`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from ddiag.errors import InputError
from ddiag.ingest.assemble import assemble
from ddiag.ingest.clues import Clues
from ddiag.ingest.discover import discover
from ddiag.ingest.incident import with_clues
from ddiag.ingest.read import Refused
from ddiag.ingest.recorded_files import RunSources, claim
from ddiag.ingest.recorded_hang import captured, settled, without_ends
from ddiag.ingest.run_folder import recorded_run, with_traces
from ddiag.ingest.trace import Several, Trace
from ddiag.ingest.workers import read_all
from ddiag.model.run import Coverage, Run

_MANY = 5
_SHOWN = 12
"""Files listed in an error; hundreds would hide the point."""


def load(
    paths: Sequence[str], *, jobs: int | None = None, progress: Callable[[int, int, str], None] | None = None
) -> Run:
    """Read *paths* (files, folders, patterns, URLs; plain, gz, zst or zip) of one job: traces, or a run folder.

    *jobs*: worker processes; None chooses. *progress* is called with (files done, files in all, path).
    Raises :class:`~ddiag.errors.InputError` when nothing is usable; what else was wrong is in ``run.coverage``.
    """
    found = discover(paths)
    recordings, files = claim(found.sources)
    outcomes = read_all(files, jobs, progress)
    traces = [trace for outcome in outcomes for trace in _traces(outcome)]
    clues = [outcome for outcome in outcomes if isinstance(outcome, Clues)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    failed = [one for one in refused if one.is_trace or one.source.explicit]
    unreadable = [*found.unreadable, *((one.source.label, one.why) for one in failed)]
    skipped = _skipped([one for one in refused if one not in failed])
    if not (recordings or traces or clues):
        raise InputError(_nothing_usable(paths, unreadable, skipped))
    run, clues = _measured(recordings, traces, unreadable, skipped), settled(clues)
    return with_clues(without_ends(run) if captured(clues) else run, clues)


def _measured(
    recordings: list[RunSources], traces: list[Trace], unreadable: list[tuple[str, str]], skipped: list[str]
) -> Run:
    """The run that a recording or traces give; without either, one that only says what could not be read."""
    if recordings:
        run = recorded_run(recordings, unreadable, skipped)
        return with_traces(run, assemble(traces, ())) if traces else run
    if traces:
        return assemble(traces, unreadable, skipped)
    return Run({}, Coverage(unreadable=tuple(unreadable), notes=tuple(skipped)))


def _traces(outcome: object) -> tuple[Trace, ...]:
    """The traces in what reading one file gave."""
    if isinstance(outcome, Several):
        return outcome.traces
    return (outcome,) if isinstance(outcome, Trace) else ()


def _skipped(refused: list[Refused]) -> list[str]:
    """One line for each file in a folder that is no trace; one for all of a kind when there are many."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for one in refused:
        by_reason[one.why].append(one.source.label)
    lines = []
    for why, labels in by_reason.items():
        if len(labels) <= _MANY:
            lines += [f"{label} skipped: {why}" for label in labels]
        else:
            lines.append(f"{len(labels)} files skipped ({labels[0]}, {labels[1]}, …): {why}")
    return lines


def _nothing_usable(paths: Sequence[str], unreadable: list[tuple[str, str]], skipped: list[str]) -> str:
    lines = [f"{path}: {why}" for path, why in unreadable] + skipped
    if not lines:
        return "no input given" if not paths else f"nothing to read in {', '.join(map(str, paths))}"
    if len(lines) == 1:
        return lines[0]
    more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join(["nothing usable:", *(f"  {line}" for line in [*lines[:_SHOWN], *more])])
