"""Megatron's straggler detector names one rank that computes slower than the others.

## Meaning
The detector times each rank's own forward and backward work. `MxRtt/Rnk` is the slowest rank and its time, `MnEtpt/Rnk`
the rank with the least throughput.

## Impact
All ranks wait for the slowest in every collective.

## Diagnosis
The same rank has the longest time and the least throughput, by more than the usual spread.

## Mitigation
Look at that rank's device and host: clocks, temperature, link, other processes; drain it if it stays slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD523",
    root_cause="RC-44",
    needs=(Events,),
    capture="Megatron with --log-straggler (and --straggler-minmax-count 8), over 20 or more intervals",
    symptom="all GPUs are busy, the job is slow; Megatron prints MxRtt/Rnk far above MnRtt/Rnk",
    evidence="one rank has the longest round trip and the least throughput",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("megatron.straggler"),
    explained_by=("DD524",),
)


@dataclass(frozen=True)
class Limits:
    spread: float = 1.10
    """Longest / shortest time; healthy jobs stay within a few per cent."""
    critical_spread: float = 1.5
    constant_share: float = 0.6
    """Of the printed lines in which it is the same rank, when there are several."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    lines = [e for e in signals[Events].of("megatron.straggler") if _spread(e) >= limits.spread]
    if not lines:
        return
    every = len(signals[Events].of("megatron.straggler"))
    votes = Counter(event.integer("max_rtt_ms_rank") for event in lines)
    rank, count = votes.most_common(1)[0]
    if rank is None:
        return
    if count < limits.constant_share * every:
        yield Abstain(
            f"the slowest rank changes: rank {rank} in {count} of {every} lines, so it is not one device",
            "tokens per rank and step beside the times (sequence lengths?), or a trace of all ranks",
        )
        return
    mine = [event for event in lines if event.integer("max_rtt_ms_rank") == rank]
    worst = max(mine, key=_spread)
    agrees = worst.integer("min_tflops_rank") in (rank, None)
    lost_ms = (worst.number("max_rtt_ms") or 0.0) - (worst.number("min_rtt_ms") or 0.0)
    yield Finding(
        title=f"rank {rank} computes {_spread(worst):.2f} times as long as the fastest rank "
        f"({worst.number('max_rtt_ms') or 0:.0f} against {worst.number('min_rtt_ms') or 0:.0f} ms)",
        severity=Severity.CRITICAL if _spread(worst) >= limits.critical_spread else Severity.WARNING,
        confidence=Confidence.HIGH if agrees and "min_tflops_rank" in worst.fields else Confidence.MEDIUM,
        culprits=Culprits(ranks=(rank,)),
        evidence=(
            Evidence("longest / shortest time", round(_spread(worst), 3), "", limits.spread, worst.source),
            Evidence("lines naming this rank", count, f"of {every}", None, ""),
            *_figures(worst, rank),
        ),
        fix=(
            f"on rank {rank}'s node: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK; dcgmi diag -r 3; other processes; "
            "PCIe link",
            "exchange the node: if the slowness stays with it, drain it; if it stays with the rank, it is the model's "
            "split or the data",
        ),
        verify="MxRtt/Rnk within 5 % of MnRtt/Rnk, and another rank in each line",
        cost=Cost(ms_per_step=lost_ms) if lost_ms > 0 else Cost(),
        began_ns=began(mine),
        why="the detector times each rank's own work, so this rank does not wait, it is waited for",
        doubt="" if agrees else f"the least throughput is rank {worst.integer('min_tflops_rank')}'s, not this one's",
    )


def _spread(event: Event) -> float:
    least, most = event.number("min_rtt_ms"), event.number("max_rtt_ms")
    return most / least if least and most else 0.0


def _figures(event: Event, rank: int) -> Iterator[Evidence]:
    """What else is extreme on this rank in the same line."""
    units = {"power_w": "W", "temp_c": "°C", "util_pct": "%", "clock_mhz": "MHz", "tflops": "TFLOP/s", "data_ms": "ms"}
    for name, unit in units.items():
        for side in ("min", "max"):
            if event.integer(f"{side}_{name}_rank") == rank:
                yield Evidence(
                    f"{side} {name.rsplit('_', 1)[0]}", event.number(f"{side}_{name}") or 0.0, unit, None, ""
                )
