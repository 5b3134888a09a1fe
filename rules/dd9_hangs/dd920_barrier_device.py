"""The first barrier runs on another GPU than the rank's own.

## Meaning
Without device_id, and before any tensor was used, NCCL's barrier guesses the device. When the guess is another rank's
GPU, two ranks share it and the barrier never ends.

## Impact
A hang at the first barrier, and a context of some 500 MB on the wrong GPU.

## Diagnosis
"using GPU 0 to perform barrier" on a rank whose own GPU is another one, and that barrier then timed out with all ranks
in it. When the printed GPU is the rank's own, the warning is harmless.

## Mitigation
torch.cuda.set_device(local_rank) and device_id= in init_process_group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, name_ranks
from ddiag.rulekit.values import began, ranks_of

RULE = Rule(
    id="DD920",
    root_cause="RC-20",
    needs=(Events,),
    optional=(Placement,),
    capture="rank, hostname, LOCAL_RANK, torch.cuda.current_device() and CUDA_VISIBLE_DEVICES printed by every rank",
    symptom="hang at the first dist.barrier(), an extra context on GPU 0",
    evidence="the barrier's guess is not the rank's device, and the barrier timed out on all ranks",
    applies=lambda signals: (
        (events := signals.get(Events)) is not None
        and events.has("c10d.barrier_device_warning")
        and events.has("c10d.watchdog_timeout")
    ),
    explained_by=("DD906", "DD907", "DD922", "DD929", "DD930"),
)


@dataclass(frozen=True)
class Limits:
    last_seq: int = 8
    """The barrier is among the first calls of a job."""
    barrier_elements: int = 1


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, placement = signals[Events], signals.get(Placement)
    guesses = {e.rank: e for e in events.of("c10d.barrier_device_warning") if e.rank is not None}
    hung = [e for e in events.of("c10d.watchdog_timeout") if _is_barrier(e, limits)]
    waiting = set(ranks_of(hung))
    if not hung or len(hung) < len(events.of("c10d.watchdog_timeout")) or not set(guesses) <= waiting:
        return
    wrong = _wrong(guesses, placement)
    if not wrong:
        return
    rows = [guesses[rank] for rank in wrong]
    yield Finding(
        title=f"{name_ranks(wrong)} ran the barrier on {_devices(rows)}, which belongs to another rank",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if _known(wrong, placement) else Confidence.MEDIUM,
        culprits=Culprits(ranks=tuple(wrong), where="dist.barrier()"),
        victims=tuple(sorted(waiting - set(wrong))),
        evidence=(
            *(Evidence(f"rank {e.rank}: guessed", f"GPU {e.integer('device')}", "", None, e.source) for e in rows[:4]),
            Evidence("ranks in the barrier that timed out", len(waiting), "ranks", None, hung[0].source),
        ),
        fix=(
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group",
            "init_process_group(..., device_id=torch.device('cuda', local_rank)); or barrier(device_ids=[local_rank])",
        ),
        verify="nvidia-smi --query-compute-apps=pid,gpu_bus_id,used_memory --format=csv: one process per GPU",
        why="all ranks came to the barrier, it never ended, and two of them used one GPU",
        doubt="" if _known(wrong, placement) else "the ranks' own devices are assumed to be numbered like the ranks",
        state=State.STALLED,
        began_ns=began(hung),
    )


def _is_barrier(event: Event, limits: Limits) -> bool:
    small = event.integer("numel_in") in (None, limits.barrier_elements) or event.word("op") == "barrier"
    return small and (event.integer("seq") or 0) <= limits.last_seq and event.word("op") in ("all_reduce", "barrier")


def _wrong(guesses: Mapping[int, Event], placement: Placement | None) -> list[int]:
    """Ranks whose guess is not their own device; without known devices, those that share another rank's GPU."""
    shared = Counter((_host(rank, placement), event.integer("device")) for rank, event in guesses.items())
    wrong = []
    for rank, event in sorted(guesses.items()):
        own, device = _local(rank, placement), event.integer("device")
        several = shared[_host(rank, placement), device] > 1
        if device != own and (several or _known([rank], placement)):
            wrong.append(rank)
    return wrong


def _host(rank: int, placement: Placement | None) -> str | None:
    return placement.host_of(rank) if placement is not None else None


def _local(rank: int, placement: Placement | None) -> int:
    """The rank's number on its host."""
    host = _host(rank, placement)
    if placement is None or host is None:
        return rank
    mates = placement.ranks_of(host)
    return mates.index(rank) if rank in mates else rank


def _known(ranks: Sequence[int], placement: Placement | None) -> bool:
    return placement is not None and all(placement.host_of(rank) is not None for rank in ranks)


def _devices(rows: Sequence[Event]) -> str:
    return ", ".join(f"GPU {device}" for device in sorted({event.integer("device") or 0 for event in rows}))
