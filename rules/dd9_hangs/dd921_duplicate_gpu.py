"""Two ranks use the same GPU.

## Meaning
NCCL found two ranks of one communicator on one device: nobody called set_device, CUDA_VISIBLE_DEVICES is wrong, more
processes than GPUs were started, or two hosts look like one (cloned machine ids).

## Impact
NCCL refuses to make the communicator: the job ends at its first collective.

## Diagnosis
`Duplicate GPU detected : rank A and rank B both on CUDA device X`. X is a PCI bus id in hex, not an index. Ranks a node
apart point to hosts that NCCL believes to be one.

## Mitigation
torch.cuda.set_device(LOCAL_RANK) before init_process_group; NCCL_HOSTID per host for cloned machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, name_ranks
from ddiag.rulekit.proof import lines
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD921",
    root_cause="RC-21",
    needs=(Events,),
    optional=(Placement,),
    capture="the log of all ranks with NCCL_DEBUG=WARN",
    symptom="ncclInvalidUsage: Duplicate GPU detected",
    evidence="the two ranks and the bus id in that text",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("nccl.duplicate_gpu"),
)


@dataclass(frozen=True)
class Limits:
    most_ranks: int = 64
    """More ranks than this are counted in the title, not named."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    seen, placement = signals[Events].of("nccl.duplicate_gpu"), signals.get(Placement)
    ranks = sorted({rank for event in seen for rank in _pair(event)})
    devices = tuple(dict.fromkeys(event.word("bus_id") for event in seen if event.get("bus_id")))
    hosts = tuple(dict.fromkeys(host for rank in ranks if placement is not None and (host := placement.host_of(rank))))
    clones = len(hosts) > 1
    apart = max((max(_pair(event)) - min(_pair(event)) for event in seen), default=0)
    who = name_ranks(ranks, limits.most_ranks)
    doubt = (
        f"the ranks are {apart} apart: they may be on two hosts that NCCL takes for one (equal machine ids)"
        if apart > 1 and not clones
        else ""
    )
    yield Finding(
        title=f"{who} use one GPU ({', '.join(devices) or 'same device'})"
        + (", on hosts that NCCL takes for one" if clones else ""),
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        culprits=Culprits(ranks=tuple(ranks), hosts=hosts, devices=devices),
        evidence=(*lines("NCCL", seen), Evidence("ranks apart", apart, "ranks")),
        fix=(
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group, and "
            "init_process_group(device_id=torch.device('cuda', local_rank))",
            "no more processes per node than GPUs (--nproc-per-node); every rank its own CUDA_VISIBLE_DEVICES (Ray)",
            "cloned virtual machines: NCCL_HOSTID=$(hostname), or a new /etc/machine-id",
        ),
        verify="print(rank, socket.gethostname(), torch.cuda.current_device(), bus id) on every rank: all differ",
        why="NCCL compared host and bus id of all ranks",
        doubt=doubt,
        state=State.CRASHED,
        began_ns=began(seen),
    )


def _pair(event: Event) -> list[int]:
    found = event.get("ranks")
    return [rank for rank in found if isinstance(rank, int)] if isinstance(found, list) else []
