"""A rank did not come to a collective; nothing tells a more special fault.

## Meaning
The others wait in a call that this rank has not issued. Whether it computes, sleeps, reads data, hangs in user code
or is gone is not in the evidence.

## Impact
All ranks stand still until the timeout.

## Diagnosis
Positions of all ranks in all groups; those who wait are traced to the one they wait for.

## Mitigation
Where the stack of the named rank is known, look at the line it stands at; otherwise take its stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import FROZEN_STORAGE, UNKNOWN, Stall
from ddiag.rulekit import Abstain, Finding, Rule, View, name_ranks
from ddiag.rulekit.stall_finding import CAPTURE, CAUSES, place, stall_finding, stalls_for, waiting, who

RULE = Rule(
    id="DD962",
    root_cause="RC-40",
    needs=(Stall,),
    capture=CAPTURE,
    symptom="NCCL timeout on all ranks but one",
    evidence="who waits for whom, over all groups, ends at this rank",
    applies=stalls_for(UNKNOWN, FROZEN_STORAGE),
    explained_by=CAUSES,
)


_ASK = (
    "py-spy dump --pid PID (with --native) of that rank while it hangs, or ddiag hang --live RUN",
    "its log just before the hang, dmesg of its node; is its process alive?",
    "next time: ddiag run -- COMMAND takes stacks of all ranks by itself",
)


@dataclass(frozen=True)
class Limits:
    """The reasoning about stalls has none that a site would set."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    stall = signals[Stall]
    yield stall_finding(
        stall,
        _title(stall),
        _fix(stall),
        "the rank passes this line, and the others go on"
        if stall.where
        else "the stack of the rank shows the line that keeps it",
    )


def _fix(stall: Stall) -> tuple[str, ...]:
    """Where its stack is known, what keeps a rank at such a place; else how to get it."""
    if not stall.where or not stall.culprits:
        return _ASK
    there = f"{who(stall)} {'is' if len(stall.culprits) == 1 else 'are'} at {stall.where}"
    if stall.phase == "stopped":
        return (
            f"`kill -CONT PID`: {there}, stopped; it goes on from there if the timeout has not come",
            "find who stops it: a debugger or profiler that was left attached, a scheduler that suspends jobs, Ctrl-Z",
        )
    if stall.phase == "input":
        return (
            f"{there}, waiting for its data: look at the file or request it reads, and at the storage of its node",
            "DataLoader(timeout=120) makes such a wait an error with a traceback; prefetch with num_workers > 0",
        )
    return (
        f"{there}: see what this line waits for (lock, file, network, subprocess, a branch only this rank takes)",
        "every rank must issue the same collectives: move rank-only work off the training thread or behind a barrier",
    )


def _title(stall: Stall) -> str:
    others = f"{waiting(stall)} in {place(stall)}"
    if not stall.culprits:
        could = f"; {name_ranks(stall.candidates)} left no evidence" if stall.candidates else ""
        return f"{others}, and the evidence does not say for whom{could}"
    if stall.verdict == "suspect_by_absence":
        does = "does" if len(stall.culprits) == 1 else "do"
        return f"{who(stall)} {does} not show up in {place(stall)}, where {waiting(stall)}"
    return f"{who(stall)} did not come: {others}"
