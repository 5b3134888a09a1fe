"""Evidence in, diagnosis out: the only place where the rooms of ddiag are joined.

>>> run = load(["traces/"])
>>> diagnose(run).verdict.headline
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ddiag
from ddiag import ingest
from ddiag._paths import rules_folder
from ddiag.analysis import derive
from ddiag.analysis.clock import align
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, Signals
from ddiag.rulekit.diagnosis import Diagnosis, conclude
from ddiag.rulekit.limits import apply_limits, read_limits
from ddiag.rulekit.loader import load_rules
from ddiag.rulekit.rule import LoadedRule

Progress = Callable[[int, int, str], None]
"""Called with (files done, files in all, name of the file just read)."""


@dataclass(frozen=True)
class Examination:
    """A diagnosis with everything it rests on: what a reporter needs."""

    diagnosis: Diagnosis
    signals: Signals
    run: Run


def load(paths: Sequence[str], *, jobs: int | None = None, progress: Progress | None = None) -> Run:
    """Read all evidence in *paths* (files, folders, globs, URLs). Raises InputError when nothing is usable."""
    return ingest.load(paths, jobs=jobs, progress=progress)


def rules_for(added: Sequence[str] = (), limits: str | None = None) -> tuple[LoadedRule, ...]:
    """The built-in rules and those in the folders *added*, with the thresholds of the TOML file *limits*."""
    loaded = load_rules(rules_folder(), [Path(folder) for folder in added]) if added else _built_in()
    return loaded if limits is None else apply_limits(loaded, read_limits(Path(limits)), limits)


@cache
def _built_in() -> tuple[LoadedRule, ...]:
    """The built-in rules, imported once."""
    return load_rules(rules_folder())


def examine(run: Run, rules: Sequence[LoadedRule], *, steps: tuple[int, int] | None = None) -> Examination:
    """Derive the signals of *run* (over the steps first … last, both included, if given) and let *rules* judge them."""
    signals = derive(run, steps=steps)
    return Examination(conclude(signals, run.coverage, rules, version=ddiag.__version__), signals, run)


def clock_offsets(examination: Examination) -> Mapping[int, int]:
    """Ns to subtract from each rank's times so that all are on one clock; zero where nothing connects the ranks."""
    return align(examination.run, examination.signals.get(Collectives)).offset_ns


def diagnose(
    run: Run, *, rules: Sequence[str] = (), limits: str | None = None, steps: tuple[int, int] | None = None
) -> Diagnosis:
    """What is wrong with *run*, most urgent first.

    *rules* are folders of a team's own rules, *limits* is a ``ddiag.toml``, *steps* the first and last step to look at.
    """
    return examine(run, rules_for(rules, limits), steps=steps).diagnosis
