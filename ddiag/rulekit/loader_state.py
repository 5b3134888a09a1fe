"""Shared by the rules that say why loader workers do not keep up: whose ranks starve, and what their workers did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Any

from ddiag.model.signals import HostLoad, InputWait, JobFacts, Signals, StepBudget
from ddiag.model.signals_recorded import LoaderWorkers
from ddiag.rulekit.cost import name_ranks, step_cost
from ddiag.rulekit.finding import Culprits, Evidence, Finding
from ddiag.rulekit.quality import confidence_for, over_steps, severity_over_steps
from ddiag.rulekit.rule import View


class Doing(Enum):
    """What the workers of a rank did while it waited for them."""

    COMPUTING = "computing"
    BLOCKED = "blocked"
    """In uninterruptible sleep: a disk, or a file system over the network."""
    SLEEPING = "sleeping"
    """Neither on a CPU nor in the kernel's file operations: they wait for somebody else."""
    READY = "ready"
    """They have made batches; the training process takes long to take one over."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class StarvedLimits:
    """Limits that all these rules share."""

    stall_share: float = 0.05
    """Stall / step for a warning; the same as DD101, which sees the stall without its reason."""
    critical_share: float = 0.25
    """From here the job pays for a quarter of its devices in vain."""
    stall_ms: float = 1.0
    """Below this a stall is the price of calling next() at all."""
    most_ranks: float = 0.5
    """Part of the ranks above which the pipeline is to blame rather than those ranks."""
    samples: int = 3
    """Looks at the workers without which nothing is said of them."""
    late_share: float = 0.8
    """Part of the wait that met no batch in turn, from which workers that are not busy all the time are late …"""
    ready_share: float = 0.2
    """… and up to which they are not."""
    even: float = 0.5
    """Median wait / mean wait from which every step waits alike; less is one slow batch now and then."""
    taking_cpu: float = 0.75
    """CPU time of the training process / its wait from which it works meanwhile …"""
    crowded: float = 1.5
    """Threads per CPU that want to run, from which it may wait for one: there, only CPU time that ranks without a
    stall do not use, and that did not go into a longer rest of the step, counts."""
    computing: float = 0.75
    """CPUs per worker from which it does nothing else."""
    runnable: float = 0.8
    """Part of the looks in which a worker had or wanted a CPU, from which it does nothing else."""
    blocked: float = 0.5
    """Part of the looks in which a worker waited for a file, from which that is what it does."""
    idle: float = 0.2
    """Up to this share of each, a worker neither computes nor waits for files."""


@dataclass(frozen=True)
class Starved:
    """Ranks that wait for input while their workers do one and the same."""

    ranks: tuple[int, ...]
    everybody: bool
    stall_ms: float
    share: float
    rows: tuple[Mapping[str, Any], ...]
    """Of :attr:`LoaderWorkers.table`."""

    @property
    def who(self) -> str:
        return "the loader workers" if self.everybody else f"the loader workers of {name_ranks(self.ranks)}"

    def middle(self, column: str) -> float:
        return median(float(row[column]) for row in self.rows)


def applies(signals: Signals) -> bool:
    """A recorded loader with worker processes."""
    return signals.has(LoaderWorkers)


def starved(signals: View, limits: StarvedLimits, doing: Doing) -> Starved | None:
    """The ranks whose input stalls them while their workers are *doing* this; None where there are none."""
    budget, wait = signals[StepBudget], signals[InputWait]
    floor = max(limits.stall_ms, limits.stall_share * budget.step_ms)
    stalls = {row["rank"]: row for row in wait.per_rank.iter_rows(named=True)}
    late = {rank for rank, stall in stalls.items() if stall["stall_ms"] >= floor}
    cpu_ms = _taking_cpu_ms(signals, limits, late)
    rows = tuple(
        row
        for row in signals[LoaderWorkers].table.sort("rank").iter_rows(named=True)
        if row["rank"] in late and _doing(row, cpu_ms.get(row["rank"]), limits) is doing
    )
    if not rows:
        return None
    ranks = tuple(row["rank"] for row in rows)
    return Starved(
        ranks,
        len(ranks) > limits.most_ranks * len(stalls) and (len(ranks) > 1 or len(stalls) == 1),
        median(stalls[rank]["stall_ms"] for rank in ranks),
        median(stalls[rank]["stall_share"] for rank in ranks),
        rows,
    )


def _taking_cpu_ms(signals: View, limits: StarvedLimits, late: Set[int]) -> Mapping[int, float]:
    """CPU time per step that each of the *late* ranks may have spent on taking batches."""
    load = signals.get(HostLoad)
    if load is None:
        return {}
    busy = load.table.filter(load.table["runnable_per_cpu"] >= limits.crowded)
    crowded = set(busy["host"].to_list())
    if not crowded:
        return load.cpu_ms
    more_ms = _more_cpu_ms(signals[StepBudget], load, late)
    if load.table.height == 1:
        return more_ms
    seats = dict(signals[LoaderWorkers].table.select("rank", "host").iter_rows())
    return {rank: ms for rank, ms in load.cpu_ms.items() if seats.get(rank) not in crowded} | {
        rank: ms for rank, ms in more_ms.items() if seats.get(rank) in crowded
    }


def _more_cpu_ms(budget: StepBudget, load: HostLoad, late: Set[int]) -> Mapping[int, float]:
    """CPU time of *late* ranks beyond that of the others, less the time by which the rest of their steps is longer;
    nothing where all are late: on a crowded host, CPU time of the whole step does not tell what a wait was.
    """
    steps = budget.table.filter(budget.table["steady"])
    busy_ms = steps["step_ms"] - steps["input_ms"] - steps["comm_wait_ms"]
    seen = [rank for rank in steps["rank"].unique().sort().to_list() if rank in load.cpu_ms]
    rest_ms = {rank: float(busy_ms.filter(steps["rank"] == rank).to_numpy().mean()) for rank in seen}
    others = [rank for rank in seen if rank not in late]
    if not others:
        return {}
    usual_cpu_ms, usual_rest_ms = (median(ms[rank] for rank in others) for ms in (load.cpu_ms, rest_ms))
    return {
        rank: load.cpu_ms[rank] - usual_cpu_ms - max(rest_ms[rank] - usual_rest_ms, 0.0)
        for rank in seen
        if rank in late
    }


def _doing(row: Mapping[str, Any], cpu_ms: float | None, limits: StarvedLimits) -> Doing:
    empty = row["empty_share"]
    if empty is not None and empty <= limits.ready_share:
        even = row["typical_ms"] >= limits.even * row["input_ms"]
        working = cpu_ms is not None and cpu_ms >= limits.taking_cpu * row["input_ms"]
        return Doing.READY if even and working else Doing.UNKNOWN
    if empty is None or row["samples"] < limits.samples or row["cpu_share"] is None:
        return Doing.UNKNOWN
    if row["cpu_share"] >= limits.computing or row["runnable_share"] >= limits.runnable:
        # Whoever is never idle is never ahead, also where some batches were there when asked for: what they hold is
        # handed over by a thread of the worker, which waits for its interpreter and for a CPU like the rest of it.
        return Doing.COMPUTING
    if empty < limits.late_share:
        return Doing.UNKNOWN
    if row["blocked_share"] >= limits.blocked and row["runnable_share"] < limits.blocked:
        return Doing.BLOCKED
    shares = (row[name] for name in ("cpu_share", "runnable_share", "blocked_share", "children_share"))
    return Doing.SLEEPING if all(share <= limits.idle for share in shares) else Doing.UNKNOWN


def worker_evidence(found: Starved, seconds: float) -> Iterator[Evidence]:
    """What was seen of the workers."""
    workers = found.rows[0]["workers"]
    yield Evidence("loader workers", workers, "per rank", None, "the loader's own number")
    yield Evidence("wait that met an empty queue", round(found.middle("empty_share"), 3), "of the wait")
    labels = (
        ("cpu_share", "a worker computes"), ("runnable_share", "a worker has or wants a CPU"),
        ("blocked_share", "a worker waits for a file"),
    )  # fmt: skip
    for column, label in labels:
        if all(row[column] is not None for row in found.rows):
            samples = round(found.middle("samples"))
            source = f"{samples} looks in {seconds:.0f} s, median of {name_ranks(found.ranks)}"
            yield Evidence(label, round(found.middle(column), 3), "of the time", None, source)


@dataclass(frozen=True)
class Story:
    """What one of these rules adds to the common evidence."""

    what: str
    """Continues "the loader workers of rank 3 …"."""
    fix: tuple[str, ...]
    why: str
    doubt: str
    where: str = "data loader"
    more: tuple[Evidence, ...] = ()


def late_workers(signals: View, limits: StarvedLimits, found: Starved, story: Story) -> Finding:
    """The finding about *found*."""
    facts, budget = signals[JobFacts], signals[StepBudget]
    floor = max(limits.stall_ms, limits.stall_share * budget.step_ms)
    severity = severity_over_steps(found.share, budget, warning=limits.stall_share, critical=limits.critical_share)
    waits = f"training waits {found.stall_ms:.1f} ms per step ({found.share:.0%} of the step)"
    return Finding(
        title=f"{found.who} {story.what}: {waits}",
        severity=severity,
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(ranks=() if found.everybody else found.ranks, where=story.where),
        evidence=(
            Evidence("input stall", round(found.stall_ms, 3), "ms/step", round(floor, 3), over_steps(budget)),
            *worker_evidence(found, signals[LoaderWorkers].seconds),
            *story.more,
        ),
        fix=story.fix,
        verify=f"`ddiag run` again: input stall below {limits.stall_share:.0%} of the step, and batches ready when "
        "they are asked for",
        cost=step_cost(found.stall_ms, budget, facts, share=found.share),
        why=story.why,
        doubt=story.doubt,
    )
