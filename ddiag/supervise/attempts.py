"""What the ranks left behind: attempts, and why there may be no ranks at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddiag.errors import InputError
from ddiag.schema.folder import ERRORS, Attempt, ProcessFiles, find_processes
from ddiag.schema.ring import HEADER_BYTES, RingHeader, unpack_header, unpack_live
from ddiag.supervise.launcher import is_isolated


def attempts(run: Path) -> tuple[Attempt, ...]:
    """Every start of the workers, from the headers of the rings."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for files in find_processes(run):
        read = _header(files)
        if read is not None:
            header, last_ns = read
            found.setdefault(files.attempt, []).append((header.wall_ns, header.wall(last_ns), header.rank))
    return tuple(
        Attempt(
            attempt,
            start_wall_ns=min(start for start, _, _ in ranks),
            end_wall_ns=max(end for _, end, _ in ranks),
            ranks=tuple(sorted({rank for _, _, rank in ranks})),
        )
        for attempt, ranks in sorted(found.items())
    )


def _header(files: ProcessFiles) -> tuple[RingHeader, int] | None:
    """A ring's header and its last sign of life; None for one that was never finished."""
    try:
        with files.ring.open("rb") as file:
            data = file.read(HEADER_BYTES)
        header, live = unpack_header(data), unpack_live(data)
    except (OSError, InputError):
        return None
    return header, max(live.closed_ns, live.progress_ns, header.mono_ns)


def why_no_ranks(run: Path, command: Sequence[str]) -> str:
    """One line for somebody who expected a diagnosis."""
    if is_isolated(command):
        return "Python runs with -I, -E or -S, which keep the recorder out; leave them away, or call ddiag.record()"
    errors = run / ERRORS
    if errors.is_file() and errors.stat().st_size:
        return f"the recorder had problems, see {errors}"
    return (
        "no process of the job called init_process_group or made a step with a torch optimizer; if one did, something "
        "put another sitecustomize before the recorder's on PYTHONPATH, or PYTHONPATH away: call ddiag.record()"
    )
