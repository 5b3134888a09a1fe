"""Results that many analyses of one run share, kept for as long as that run lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from ddiag.model.run import Run

P = ParamSpec("P")
T = TypeVar("T")


def once_per_run(function: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """Let a pure *function* of a run (and hashable positional arguments) do its work once per run and arguments."""
    results: dict[int, dict[Hashable, T]] = {}

    @wraps(function)
    def remembering(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> T:
        known = results.get(id(run))
        if known is None:
            known = results[id(run)] = {}
            weakref.finalize(run, results.pop, id(run), None)
        if args not in known:
            known[args] = function(run, *args, **kwargs)
        return known[args]

    return remembering
