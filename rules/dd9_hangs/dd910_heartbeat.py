"""The watchdog thread itself was stuck: a CUDA or NCCL call, or somebody who holds the GIL.

## Meaning
The heartbeat monitor ends a process whose watchdog makes no progress. That is no time-out of a collective: the watchdog
waits in a CUDA call (cudaEventQuery, cudaEventDestroy) behind a dead kernel, or for the GIL that a native call holds.

## Impact
The process aborts after 480 s (600 s before torch 2.5), during checkpoints, compilation, offload or shutdown.

## Diagnosis
"Heartbeat monitor timed out" or "watchdog got stuck" without a collective's time-out before it. The rank whose queue of
collectives differs from the others' is where to look.

## Mitigation
Take native stacks of that rank and remove the blocker; a longer heartbeat only hides it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events, Stacks
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, name_ranks
from ddiag.rulekit.values import began, ranks_of

RULE = Rule(
    id="DD910",
    root_cause="RC-10",
    needs=(Events,),
    optional=(Stacks,),
    capture="py-spy dump --native --pid PID of every rank while it hangs, or ddiag run -- COMMAND",
    symptom="ProcessGroupNCCL's watchdog got stuck for 480 seconds; Heartbeat monitor timed out",
    evidence="the heartbeat's text without a watchdog time-out before it; queue lengths of the ranks",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("c10d.heartbeat"),
    explained_by=("DD901", "DD906", "DD907", "DD922", "DD929", "DD930", "DD934", "DD941"),
    references=("https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",),
)


@dataclass(frozen=True)
class Limits:
    least_behind: int = 1
    """Collectives by which a rank's queue must differ from the others' to be named."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals[Events]
    stuck = events.of("c10d.heartbeat")
    timeouts = events.of("c10d.watchdog_timeout")
    if timeouts and not _before(stuck, timeouts):
        return
    ranks, how, sure = _suspects(stuck, events, limits)
    seconds = max((event.integer("seconds") or 0 for event in stuck), default=0)
    everyone = ranks_of(stuck)
    yield Finding(
        title=f"{name_ranks(ranks) if ranks else 'no single rank'} {how}: the watchdog was stuck"
        + (f" for {seconds} s" if seconds else "")
        + f" on {_ranks(len(everyone) or len(stuck))}, in no collective's time-out",
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM if sure else Confidence.LOW,
        culprits=Culprits(ranks=ranks),
        victims=tuple(sorted(set(everyone) - set(ranks))),
        evidence=tuple(_rows(stuck)),
        fix=(
            "py-spy dump --native --pid PID (or gdb -p PID) on that rank: which call holds the GIL or waits in CUDA",
            "move long native work (tokenizer, pickle, NVMe reads, cudaFree) out of the process, or release the GIL",
            "only as a last resort TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800 or TORCH_NCCL_ENABLE_MONITORING=0",
        ),
        verify="native stacks of the rank show that call no more; no heartbeat line in a run of that length",
        why="no rank's watchdog reported a collective that timed out",
        doubt="native stacks of all ranks would decide whether a GPU, the driver or the GIL blocks it",
        state=State.STALLED,
        began_ns=began(stuck),
    )


def _before(stuck: Sequence[Event], timeouts: Sequence[Event]) -> bool:
    """Whether the heartbeat came first; where times are missing, a time-out explains the rest."""
    one, other = began(stuck), began(timeouts)
    return one is not None and other is not None and one < other


def _suspects(stuck: Sequence[Event], events: Events, limits: Limits) -> tuple[tuple[int, ...], str, bool]:
    """Ranks to look at, what singles them out, and whether that says much."""
    holding = [e.rank for e in events.of("process.state") if e.get("gil") is True and e.rank is not None]
    if holding:
        return tuple(sorted(holding)), "holds the GIL", True
    sizes = {e.rank: size for e in stuck if e.rank is not None and (size := e.integer("work_list_size")) is not None}
    counts = Counter(sizes.values())
    if len(sizes) > 2 and len(counts) > 1:
        usual, often = counts.most_common(1)[0]
        odd = tuple(sorted(rank for rank, size in sizes.items() if abs(size - usual) >= limits.least_behind))
        if often > len(odd):
            return odd, f"has {sizes[odd[0]]} collectives queued, the others {usual}", True
    only = ranks_of(stuck)
    return (only, "alone is stuck", False) if len(only) == 1 else ((), "stands out", False)


def _rows(stuck: Sequence[Event]) -> Iterator[Evidence]:
    for event in stuck[:6]:
        size, who = event.integer("work_list_size"), f"rank {event.rank}" if event.rank is not None else "a rank"
        if size is not None:
            yield Evidence(f"{who}: collectives queued", size, "", None, event.source)
        elif event.integer("seconds"):
            yield Evidence(f"{who}: without progress", event.integer("seconds") or 0, "s", None, event.source)


def _ranks(count: int) -> str:
    return "one rank" if count == 1 else f"{count} ranks"
