"""Ranks that compute and meet: a tiny discrete simulation whose waiting is known exactly.

A rank runs its actions one after the other on one stream. A collective ends on all members together, its transfer
time after the last one has arrived.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from ddiag.analysis.activity import activity
from ddiag.analysis.collectives import match
from ddiag.analysis.late_ranks import late_ranks
from ddiag.analysis.steps import StepWindows, find_steps
from ddiag.model.run import Run
from ddiag.model.signals import Collectives, LateRanks
from ddiag.model.tables import TABLES
from tests.builders import RunBuilder

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True)
class Compute:
    ms: float
    name: str = "gemm"


@dataclass(frozen=True)
class Idle:
    """The device idles because the host does something else."""

    ms: float


@dataclass(frozen=True)
class Load:
    """The device idles because the host waits for input."""

    ms: float


@dataclass(frozen=True)
class Meet:
    group: str
    op: str = "all_reduce"
    bytes: int = 1 << 20
    transfer_ms: float = 1.0


Action = Compute | Idle | Load | Meet
Program = Callable[[int, int], Sequence[Action]]
"""(rank, step) -> actions of that step."""


@dataclass
class Job:
    groups: Mapping[str, tuple[int, ...]]
    program: Program
    steps: int = 6
    clock_ms: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """How far each rank's clock is ahead."""
    first_step: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """First recorded step of each rank."""
    last_step: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Last recorded step of each rank."""
    traced: tuple[int, ...] | None = None
    """Ranks with a trace; None = all."""
    named_groups: bool = True
    numbered_steps: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Added to the step numbers of a rank."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for members in self.groups.values() for rank in members}))

    def run(self) -> Run:
        recorder = _Recorder(self, RunBuilder(world_size=len(self.ranks)))
        for step in range(self.steps):
            recorder.step(step)
        return self._with_groups(recorder.builder.build())

    def _with_groups(self, run: Run) -> Run:
        if not self.named_groups:
            return run
        rows = [{"group": _bare(name), "size": len(who), "ranks": list(who)} for name, who in self.groups.items()]
        return dataclasses.replace(run, tables={**run.tables, "groups": TABLES["groups"].conform(pl.DataFrame(rows))})


def _bare(group: str) -> str:
    """``tp@0`` and ``tp@1`` are two groups that bear the same name ``tp``."""
    return group.split("@", maxsplit=1)[0]


class _Recorder:
    def __init__(self, job: Job, builder: RunBuilder) -> None:
        self.job = job
        self.builder = builder
        self.now = dict.fromkeys(job.ranks, 1000.0)

    def step(self, step: int) -> None:
        todo = {rank: list(self.job.program(rank, step)) for rank in self.job.ranks}
        begin = dict(self.now)
        while any(todo.values()):
            for rank, actions in todo.items():
                while actions and not isinstance(actions[0], Meet):
                    self._alone(rank, step, actions.pop(0))
            self._meet(step, todo)
        for rank in self.job.ranks:
            if self._recorded(rank, step):
                start = begin[rank] + self.job.clock_ms.get(rank, 0.0)
                number = step + self.job.numbered_steps.get(rank, 0)
                self.builder.rank(rank).step(number, start, self.now[rank] - begin[rank])

    def _alone(self, rank: int, step: int, action: Action) -> None:
        at = self.now[rank] + self.job.clock_ms.get(rank, 0.0)
        assert not isinstance(action, Meet)
        if self._recorded(rank, step):
            builder = self.builder.rank(rank)
            if isinstance(action, Compute):
                builder.launch_kernel(action.name, at, at, action.ms)
            elif isinstance(action, Load):
                builder.annotation(LOADER, at, action.ms)
        self.now[rank] += action.ms

    def _meet(self, step: int, todo: Mapping[int, list[Action]]) -> None:
        """Carry out every collective whose members have all arrived; one must, or the programs deadlock."""
        done = False
        for group, members in self.job.groups.items():
            heads = [todo[rank][0] if todo[rank] else None for rank in members]
            if any(not isinstance(head, Meet) or head.group != group for head in heads):
                continue
            call = heads[0]
            assert isinstance(call, Meet)
            end = max(self.now[rank] for rank in members) + call.transfer_ms
            for rank in members:
                todo[rank].pop(0)
                self._record(rank, step, call, end - self.now[rank], len(members))
                self.now[rank] = end
            done = True
        assert done or not any(todo.values()), "deadlock in the test's programs"

    def _record(self, rank: int, step: int, call: Meet, ms: float, members: int) -> None:
        if self._recorded(rank, step):
            named = self.job.named_groups
            self.builder.rank(rank).collective(
                call.op,
                self.now[rank] + self.job.clock_ms.get(rank, 0.0),
                ms,
                group=_bare(call.group) if named else "unknown",
                group_size=members if named else None,
                bytes_in=call.bytes,
                bytes_out=call.bytes * (members if call.op == "all_gather" else 1),
            )

    def _recorded(self, rank: int, step: int) -> bool:
        traced = self.job.traced is None or rank in self.job.traced
        first, last = self.job.first_step.get(rank, 0), self.job.last_step.get(rank, self.job.steps)
        return traced and first <= step <= last


def every_step_steady(run: Run) -> StepWindows:
    """The steps of *run*, all of them steady: what is excluded as warm-up is another test's subject."""
    windows = find_steps(run)
    return dataclasses.replace(windows, table=windows.table.with_columns(steady=pl.lit(value=True)), excluded=(-1,))


def collectives_of(run: Run) -> Collectives:
    found = match(run, every_step_steady(run), activity(run))
    assert found is not None
    return found


def late_ranks_of(run: Run) -> LateRanks:
    windows, acts = every_step_steady(run), activity(run)
    found = late_ranks(run, windows, acts, match(run, windows, acts))
    assert found is not None
    return found
