"""GPUs of one node talk through host memory although NVLink or PCIe peer access would serve.

## Meaning
NCCL_P2P_DISABLE=1 was left in the environment, the GPUs are isolated from each other (one visible device per container,
separate IPC namespaces), or a virtual machine hides the NVSwitch.

## Impact
5–20 GB/s inside a node instead of hundreds.

## Diagnosis
Channels `via SHM` (or NET) between ranks of one host whose `nvidia-smi topo -m` shows NV#, `P2P is disabled between …`,
the variable. Between boards without peer access SHM is right.

## Mitigation
Unset NCCL_P2P_DISABLE; all GPUs visible to all processes; --ipc=host; the machine's topology file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts, Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.proof import hosts_among, lines, name_hosts, shown
from ddiag.rulekit.transports import nvlink_between, on_transport, switched_on

RULE = Rule(
    id="DD421",
    root_cause="RC-63",
    needs=(),
    optional=(Events, Settings, NodeFacts, Placement),
    capture="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,P2P,GRAPH and nvidia-smi topo -m",
    symptom="5-20 GB/s between GPUs of one node that has NVLink",
    evidence="via SHM between GPUs with NV# in topo -m, or NCCL_P2P_DISABLE=1",
    applies=lambda signals: (
        ((events := signals.get(Events)) is not None and events.has("nccl.channel", "nccl.p2p_disabled"))
        or ((settings := signals.get(Settings)) is not None and bool(settings.of("env", "NCCL_P2P_DISABLE")))
    ),
    explained_by=("DD911",),
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable",),
)
_LEVELS = ("LOC", "0")


@dataclass(frozen=True)
class Limits:
    channels: int = 1
    """So many pairs over shared memory are enough, where NVLink is known to be there."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events, settings, facts = signals.get(Events) or Events(()), signals.get(Settings), signals.get(NodeFacts)
    placement = signals.get(Placement)
    shared = on_transport(events, "shm")
    inside = [event for event in on_transport(events, "net") if _one_host(event, placement)]
    off = events.of("nccl.p2p_disabled")
    disabled = switched_on(settings, "NCCL_P2P_DISABLE") or _level(settings)
    nvlink = nvlink_between(facts)
    seen = [*shared, *inside]
    if seen and (disabled or off or (nvlink and len(seen) >= limits.channels)):
        yield _finding(seen, off, settings, facts, placement, disabled=disabled, nvlink=nvlink)
    elif disabled and nvlink and not on_transport(events, "p2p"):
        yield _finding([], off, settings, facts, placement, disabled=True, nvlink=True)


def _one_host(event: Event, placement: Placement | None) -> bool:
    """A network channel between two ranks that are known to sit on one host."""
    src, dst = event.integer("src"), event.integer("dst")
    if placement is None or src is None or dst is None:
        return False
    a, b = placement.host_of(src), placement.host_of(dst)
    return a is not None and a == b


def _level(settings: Settings | None) -> bool:
    found = settings.of("env", "NCCL_P2P_LEVEL") if settings is not None else ()
    return any(one.value.upper() in _LEVELS for one in found)


def _finding(
    seen: Sequence[Event],
    off: Sequence[Event],
    settings: Settings | None,
    facts: NodeFacts | None,
    placement: Placement | None,
    *,
    disabled: bool,
    nvlink: bool,
) -> Finding:
    variables = [
        one
        for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
        for one in (settings.of("env", name) if settings is not None else ())
    ]
    hosts = hosts_among([*seen, *off, *variables], placement)
    links = [fact for fact in (facts.of("gpu.link") if facts is not None else ()) if "=NV" in fact.text]
    rows: tuple[Evidence, ...] = tuple(shown(f"{fact.device} to", fact) for fact in links[:2])
    over = "shared memory" if any(event.get("transport") == "shm" for event in seen) else "the network"
    return Finding(
        title=f"GPUs of {name_hosts(hosts)} talk through {over}"
        + (" although NVLink connects them" if nvlink else "")
        + (f": {variables[0].key}={variables[0].value}" if disabled and variables else ""),
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if disabled or nvlink else Confidence.MEDIUM,
        culprits=Culprits(hosts=hosts, where=variables[0].key if disabled and variables else None),
        evidence=(
            *(shown(one.key, one) for one in variables[:2]),
            *lines("channel", seen, 3),
            *lines("NCCL", off, 2),
            *rows,
        ),
        fix=(
            *(("unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL",) if disabled else ()),
            "give every process all GPUs of the node (not one per container), --ipc=host --pid=host",
            "virtual machines: pass the NVSwitch through, or set the provider's NCCL_TOPO_FILE",
        ),
        verify="nvidia-smi topo -p2p r shows OK; NCCL_DEBUG=INFO … | grep -c 'via P2P' is not 0; all_reduce_perf -g 8",
        why="NVLink is there and not used" if nvlink else "peer access is switched off, not missing",
        doubt="" if disabled or nvlink else "boards without peer access (consumer GPUs) cannot do otherwise",
    )
