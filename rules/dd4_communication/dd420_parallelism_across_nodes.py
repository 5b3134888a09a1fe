"""Tensor parallelism spans nodes: its all-reduce of every layer goes over the network instead of NVLink.

## Meaning
The tensor-parallel size is larger than a node has GPUs, or ranks are ordered so that such a group spans nodes. Tensor
parallelism communicates twice in each layer and cannot hide it.

## Impact
Every layer waits for the network: adding nodes slows training down.

## Diagnosis
tensor_model_parallel_size against GPUs per node, or hosts of the members of a tensor group.

## Mitigation
Tensor parallelism within the NVLink domain, pipeline or data parallelism across nodes (order tp-cp-ep-dp-pp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Setting
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import NodeFacts, Settings, Stall
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.proof import shown
from ddiag.rulekit.values import as_number

RULE = Rule(
    id="DD420",
    root_cause="RC-60",
    needs=(),
    optional=(Settings, NodeFacts, Placement, Stall),
    capture="the framework's arguments, and NCCL_DEBUG=INFO of all ranks (host of each rank)",
    symptom="adding nodes slows training down; TP=16 on nodes of 8 GPUs",
    evidence="tensor-parallel size above GPUs per node, or a tensor group with ranks on two hosts",
    applies=lambda signals: signals.has(Settings) or (signals.has(Stall) and signals.has(Placement)),
)
_SIZES = (
    ("megatron", ("tensor_model_parallel_size", "tensor-model-parallel-size")),
    ("ds_config", ("tensor_parallel.autotp_size", "tensor_parallel.tp_size")),
    ("trainer", ("tensor_parallel_size", "tensor_model_parallel_size", "tp_size")),
    ("accelerate", ("tp_size", "megatron_lm_config.megatron_lm_tp_degree")),
)


@dataclass(frozen=True)
class Limits:
    fewest_gpus: int = 2
    """Fewer GPUs in the evidence do not tell how many a node has."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    placement = signals.get(Placement)
    found = _size(signals.get(Settings))
    per_node, how = _per_node(placement, signals.get(NodeFacts), signals.get(Settings))
    if found is not None and per_node >= limits.fewest_gpus and (as_number(found.value) or 0) > per_node:
        size = int(as_number(found.value) or 0)
        yield _finding(
            f"tensor parallelism of {size} spans nodes of {per_node} GPUs",
            (shown(found.key, found, size), Evidence("GPUs per node", per_node, "", None, how)),
            f"a group of {size} ranks cannot fit on {per_node} GPUs",
            certain=True,
        )
        return
    yield from _by_group(signals.get(Stall), placement)


def _size(settings: Settings | None) -> Setting | None:
    if settings is None:
        return None
    named = [one for kind, keys in _SIZES for key in keys for one in settings.of(kind, key)]
    return next((one for one in named if as_number(one.value)), None)


def _per_node(placement: Placement | None, facts: NodeFacts | None, settings: Settings | None) -> tuple[int, str]:
    """GPUs of a node: as the launcher says, as nvidia-smi lists them, or as many ranks as a host has."""
    local = [as_number(one.value) for one in (settings.of("env", "LOCAL_WORLD_SIZE") if settings is not None else ())]
    if local and local[0]:
        return int(local[0]), "LOCAL_WORLD_SIZE"
    counts = Counter(fact.host for fact in (facts.of("gpu.bus_id") if facts is not None else ()))
    if counts:
        return max(counts.values()), "nvidia-smi"
    seats = Counter(seat.host for seat in (placement.seats if placement is not None else ()) if seat.host)
    full = placement is not None and placement.world_size == len(placement.seats)
    return (max(seats.values()), "ranks on each host") if seats and full else (0, "")


def _by_group(stall: Stall | None, placement: Placement | None) -> Iterator[Finding]:
    if stall is None or placement is None:
        return
    for group in stall.groups:
        words = f"{group.group} {group.desc}".lower()
        hosts = {host for rank in group.ranks if (host := placement.host_of(rank))}
        if ("tensor_model_parallel" in words or words.split()[-1:] == ["tp"]) and len(hosts) > 1:
            row = Evidence(f"hosts of {group.desc or group.group}", ", ".join(sorted(hosts)[:4]))
            yield _finding(
                f"tensor-parallel group of ranks {group.ranks[0]}–{group.ranks[-1]} spans {len(hosts)} hosts",
                (row,),
                "its members run on different hosts",
                certain=False,
            )
            return


def _finding(title: str, evidence: tuple[Evidence, ...], why: str, *, certain: bool) -> Finding:
    return Finding(
        title=title,
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if certain else Confidence.MEDIUM,
        culprits=Culprits(where="tensor_model_parallel_size"),
        evidence=evidence,
        fix=(
            "tensor parallelism no larger than the GPUs of a node (the NVLink domain); pipeline across nodes",
            "Megatron: --use-tp-pp-dp-mapping off, order tp-cp-ep-dp-pp; torch: DeviceMesh with tp last",
        ),
        verify="NCCL_DEBUG=INFO: channels of every tensor group are via P2P or NVLS, none via NET",
        why=why,
        doubt="in an NVLink rack (NVL72) hosts share one NVLink domain",
    )
