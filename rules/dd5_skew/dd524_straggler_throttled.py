"""The slow rank's device runs at a lower clock than the others: it throttles.

## Meaning
A device that gets too hot, or too little power, lowers its clock. Megatron's straggler line shows clock, temperature
and power of the extreme ranks beside the times (power in milliwatts, labelled W).

## Impact
All ranks run at the pace of the throttled one.

## Diagnosis
The rank with the longest time has the lowest clock, well below the highest, with the highest temperature or the lowest
power.

## Mitigation
Cooling, power supply, power cap; drain the node until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.signals_incident import Events
from ddiag.rulekit import Abstain, Confidence, Cost, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.values import began

RULE = Rule(
    id="DD524",
    root_cause="RC-46",
    needs=(Events,),
    capture="Megatron --log-straggler; nvidia-smi --query-gpu=clocks.sm,temperature.gpu,power.draw,"
    "clocks_event_reasons.active --format=csv -l 1 on that node",
    symptom="throughput decays after minutes; one rank is slow and hot",
    evidence="longest time, lowest clock and highest temperature (or lowest power) on one rank",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("megatron.straggler"),
)


@dataclass(frozen=True)
class Limits:
    spread: float = 1.05
    """Longest / shortest time."""
    clock_share: float = 0.92
    """Lowest / highest clock below which it explains a difference: peers differ by a few per cent."""
    hot_c: float = 83.0
    """Where data-centre devices begin to slow down."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    lines = [event for event in signals[Events].of("megatron.straggler") if _throttled(event, limits)]
    if not lines:
        return
    worst = min(lines, key=_clock_share)
    rank = worst.integer("min_clock_mhz_rank")
    if rank is None:
        return
    hot = worst.integer("max_temp_c_rank") == rank and (worst.number("max_temp_c") or 0.0) >= limits.hot_c
    starved = worst.integer("min_power_w_rank") == rank
    clock, peers = worst.number("min_clock_mhz") or 0.0, worst.number("max_clock_mhz") or 0.0
    reason = f" at {worst.number('max_temp_c'):.0f} °C" if hot else ""
    yield Finding(
        title=f"rank {rank}'s device runs at {clock:.0f} MHz instead of {peers:.0f}{reason} and is the slowest",
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH if hot or starved else Confidence.MEDIUM,
        culprits=Culprits(ranks=(rank,)),
        evidence=(
            Evidence("clock / highest clock", round(_clock_share(worst), 3), "", limits.clock_share, worst.source),
            *(
                (Evidence("temperature", worst.number("max_temp_c") or 0.0, "°C", limits.hot_c, "the highest"),)
                if hot
                else ()
            ),
            *(
                (Evidence("power", round(worst.number("min_power_w") or 0.0, 1), "W", None, "the lowest"),)
                if starved
                else ()
            ),
            Evidence("time", worst.number("max_rtt_ms") or 0.0, "ms", None, "the longest"),
        ),
        fix=(
            "look at the reason: nvidia-smi -q -d PERFORMANCE (HW Slowdown, HW Thermal Slowdown, HW Power Brake, SW "
            "Thermal) and TEMPERATURE on that node",
            "cooling (fans, dust, blocked air, liquid loop), power supply and cables, nvidia-smi -pl back to the "
            "default",
            "drain the node until it is repaired",
        ),
        verify="the same line after the repair: MnClk/Rnk within 5 % of MxClk/Rnk, MxRtt near MnRtt",
        cost=Cost(ms_per_step=max((worst.number("max_rtt_ms") or 0.0) - (worst.number("min_rtt_ms") or 0.0), 0.0)),
        began_ns=began(lines),
        why="clock, time"
        + (", temperature" if hot else "")
        + (", power" if starved else "")
        + " are extreme on one rank",
        doubt="" if hot else "a power cap or an application clock set on purpose looks the same",
    )


def _throttled(event: Event, limits: Limits) -> bool:
    rank = event.integer("max_rtt_ms_rank")
    least, most = event.number("min_rtt_ms"), event.number("max_rtt_ms")
    if rank is None or rank != event.integer("min_clock_mhz_rank") or not least or not most:
        return False
    return most / least >= limits.spread and 0.0 < _clock_share(event) <= limits.clock_share


def _clock_share(event: Event) -> float:
    return (event.number("min_clock_mhz") or 0.0) / (event.number("max_clock_mhz") or 1.0)
