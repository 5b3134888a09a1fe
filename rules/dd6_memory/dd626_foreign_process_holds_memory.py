"""Another process holds the device's memory.

## Meaning
Besides this rank something else lives on the device: another job, a notebook, an inference server, a zombie of an
earlier attempt, or other ranks of this job that were placed on the same device.

## Impact
The request would have fitted; the job dies for a neighbour's sake, or runs slower with it.

## Diagnosis
The OOM text lists the processes on the device (torch >= 2.1); in older texts capacity minus free minus reserved is far
more than this process's own context needs.

## Mitigation
End the other process, or give the job devices of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Deaths, Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, View, human_bytes
from ddiag.rulekit.oom import FOREIGN, Oom, culprit_ranks, gravity, numbers, of_reason
from ddiag.rulekit.values import began, hosts_of

RULE = Rule(
    id="DD626",
    root_cause="RC-45",
    needs=(Events,),
    optional=(Deaths, JobFacts),
    capture="the full OutOfMemoryError line, and nvidia-smi of that node (its process list)",
    symptom="out of memory with 'Process 4711 has 12 GiB memory in use', although the model is small",
    evidence="OOM text names another pid, or capacity - free - reserved is far above a context's size",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("cuda.oom"),
)


@dataclass(frozen=True)
class Limits:
    pids: int = 4
    """Other processes listed in the title at most."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = of_reason(signals[Events], FOREIGN)
    if not found:
        return
    worst = max(found, key=lambda one: one.foreign)
    pids = _pids(found)
    ranks = culprit_ranks(found, signals.get(Deaths), signals.get(JobFacts))
    severity, state = gravity(found, signals.get(Deaths))
    who = f"process {', '.join(map(str, pids[: limits.pids]))}" if pids else "something other than this process"
    yield Finding(
        title=f"{who} holds {human_bytes(worst.foreign)} of {worst.gpu}'s {human_bytes(worst.capacity)}",
        severity=severity,
        confidence=Confidence.HIGH if pids else Confidence.MEDIUM,
        culprits=Culprits(ranks=ranks, hosts=hosts_of(one.event for one in found) if ranks else ()),
        evidence=tuple(
            Evidence(f"{one.gpu}: held by others", round(one.foreign / 2**30, 2), "GiB", None, one.event.source)
            for one in found[:8]
        ),
        fix=(
            f"look who it is: `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`, "
            f"`ps -o pid,ppid,etime,cmd -p {','.join(map(str, pids)) or 'PID'}`; end it if it is a leftover",
            "if it belongs to this job, two ranks share the device: torch.cuda.set_device(local_rank) before anything "
            "else touches CUDA, and CUDA_VISIBLE_DEVICES as the launcher sets it",
            "no strangers: `nvidia-smi -c EXCLUSIVE_PROCESS`, or devices of their own for each job (Slurm --gres, "
            "Kubernetes nvidia.com/gpu)",
        ),
        verify="`nvidia-smi pmon -c 1; fuser -v /dev/nvidia*` on the node shows one pid per device",
        state=state,
        began_ns=began(one.event for one in found),
        why=f"{numbers(worst)}; without the other's {human_bytes(worst.foreign)} the request fits",
        doubt=""
        if pids
        else "this text does not list processes; memory of this process outside the allocator "
        "(NCCL, cuBLAS, other libraries) looks the same",
    )


def _pids(found: tuple[Oom, ...]) -> list[int]:
    pids: set[int] = set()
    for one in found:
        others = one.event.get("others")
        for other in others if isinstance(others, list) else []:
            pid = other.get("pid") if isinstance(other, dict) else None
            if isinstance(pid, int):
                pids.add(pid)
    return sorted(pids)
