"""The exception that ends a training process, told when the interpreter exits.

Python keeps what it printed last as an uncaught exception; so nothing has to be put in the way of exceptions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from ddiag.capture.recorder import Recorder
from ddiag.schema.secrets import redact

MAX_CHARACTERS = 300
"""Of the message."""


def tell(active: Recorder) -> None:
    """Write the fact ``exception``, if there was one that nobody caught."""
    found: BaseException | None = getattr(sys, "last_value", None)
    if found is None or hasattr(sys, "ps1") or sys.flags.interactive:
        return  # at a prompt people make mistakes and go on
    active.facts.write(
        "exception",
        type=type(found).__qualname__,
        message=redact(_first_line(str(found)))[:MAX_CHARACTERS],
        where=_where(getattr(sys, "last_traceback", None)),
    )


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _where(trace: TracebackType | None) -> str | None:
    """``file:line in function`` of the innermost frame that is no library's, else of the innermost."""
    innermost = own = None
    libraries = _libraries()
    while trace is not None:
        code = trace.tb_frame.f_code
        innermost = f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}"
        if not code.co_filename.startswith((*libraries, "<")):
            own = innermost
        trace = trace.tb_next
    return own or innermost


def _libraries() -> set[str]:
    """Folders that are no user's code, ours too: a call that failed may have gone through a stand-in of ours.

    Asked for at the end only: the first look at these paths costs a training process milliseconds.
    """
    import sysconfig

    return {*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1])}
