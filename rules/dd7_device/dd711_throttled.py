"""A GPU slows itself down: heat, power supply, or a brake from outside.

## Meaning
HW Slowdown, HW Thermal Slowdown, HW Power Brake or SW Thermal Slowdown is active, or one GPU under load runs hotter and
at a clearly lower clock than its peers. SW Power Cap alone at full use is how a busy GPU normally looks.

## Impact
The rank on it computes slower, and everyone waits for it; often it begins minutes into the job.

## Diagnosis
`Clocks Event Reasons` (drivers up to 530: Clocks Throttle Reasons), SM clock, temperature and power beside those of the
other GPUs. A lower maximum clock from the first step is another product or power limit.

## Mitigation
Cooling, power supply, `nvidia-smi -pl`, fans; drain the node.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.placement import Placement
from ddiag.model.signals_incident import NodeFacts
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.devices import Device, blame, gpus
from ddiag.rulekit.proof import shown

RULE = Rule(
    id="DD711",
    root_cause="RC-46",
    needs=(NodeFacts,),
    optional=(Placement,),
    capture="nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER on all nodes during training",
    symptom="throughput decays after minutes, one node is slower",
    evidence="HW or thermal slowdown active; SM clock below the peers' at high temperature or low power",
    applies=lambda signals: (
        (facts := signals.get(NodeFacts)) is not None and bool(facts.of("gpu.throttle.", "gpu.clock.sm_mhz"))
    ),
    explained_by=("DD907",),
)
_REASONS = {
    "gpu.throttle.hw_thermal_slowdown": "hardware slowdown for heat",
    "gpu.throttle.sw_thermal_slowdown": "software slowdown for heat",
    "gpu.throttle.hw_power_brake": "power brake of the server",
    "gpu.throttle.hw_slowdown": "hardware slowdown",
}


@dataclass(frozen=True)
class Limits:
    busy_pct: float = 50.0
    """Clocks of a GPU less busy than this say nothing."""
    slower_share: float = 0.95
    """SM clock / median of the busy peers below which a GPU is slow."""
    hot_c: float = 83.0
    """Temperature from which GPUs of servers begin to slow down."""
    peers: int = 2


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    placement = signals.get(Placement)
    devices = gpus(signals[NodeFacts], placement)
    slowed = [device for device in devices if _reasons(device) and not _idle(device, limits)]
    if slowed:
        yield _finding(slowed, devices, placement, limits)
        return
    slow = [d for d in devices if _slower(d, devices, limits) and _hot_or_starved(d, devices, limits)]
    if slow:
        yield _finding(slow, devices, placement, limits)


def _reasons(device: Device) -> list[str]:
    found = [words for key, words in _REASONS.items() if device.active(key)]
    return found[:1] if found[:1] != ["hardware slowdown"] or len(found) == 1 else found[1:]


def _idle(device: Device, limits: Limits) -> bool:
    """Known to do nothing: then a slowdown is a state of rest."""
    busy = device.highest("gpu.utilization_pct")
    return busy is not None and busy < limits.busy_pct and not device.active("gpu.throttle.hw_thermal_slowdown")


def _busy_clocks(devices: Sequence[Device], limits: Limits) -> dict[int, float]:
    return {
        id(device): clock
        for device in devices
        if (clock := device.number("gpu.clock.sm_mhz"))
        and (device.highest("gpu.utilization_pct") or 0) >= limits.busy_pct
    }


def _slower(device: Device, devices: Sequence[Device], limits: Limits) -> bool:
    """Below the median of its busy peers of the same product."""
    same = [one for one in devices if one.text("gpu.name") == device.text("gpu.name")]
    clocks = _busy_clocks(same, limits)
    others = [clock for key, clock in clocks.items() if key != id(device)]
    own = clocks.get(id(device))
    return own is not None and len(others) >= limits.peers and own < limits.slower_share * statistics.median(others)


def _hot_or_starved(device: Device, devices: Sequence[Device], limits: Limits) -> bool:
    """Hot, or (busy as it is) drawing clearly less power than its peers: the clock is held down, not unused."""
    celsius = device.highest("gpu.temperature_c")
    if celsius is not None and celsius >= limits.hot_c:
        return True
    watts = device.number("gpu.power_w")
    others = [number for one in devices if one is not device and (number := one.number("gpu.power_w")) is not None]
    same_limit = len({one.number("gpu.power_limit_w") for one in devices}) == 1
    return watts is not None and bool(others) and same_limit and watts < 0.9 * statistics.median(others)


def _finding(slow: Sequence[Device], devices: Sequence[Device], placement: Placement | None, limits: Limits) -> Finding:
    named = blame(slow, placement)
    reasons = list(dict.fromkeys(words for device in slow for words in _reasons(device)))
    clocks = [clock for device in devices if device not in slow and (clock := device.number("gpu.clock.sm_mhz"))]
    usual = statistics.median(clocks) if clocks else None
    first = slow[0]
    clock = first.number("gpu.clock.sm_mhz")
    compared = f" ({clock:.0f} MHz, peers {usual:.0f} MHz)" if clock and usual else ""
    which = ", ".join(named.devices[:4]) if len(named.devices) <= 4 else f"{len(named.devices)} GPUs"
    on = f" on {', '.join(named.hosts[:2])}" if named.hosts else ""
    return Finding(
        title=f"{which}{on} slow{'s' if len(slow) == 1 else ''} down: "
        f"{', '.join(reasons) or 'clock held below its peers'}{compared}",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if reasons else Confidence.MEDIUM,
        culprits=named,
        evidence=tuple(_rows(slow)),
        fix=(
            "look at fans, filters, inlet temperature and neighbours of the node; power supplies and their cables",
            "nvidia-smi -pl WATTS on all GPUs alike when power is short; the BMC's power cap and thermal table",
            "drain the node until then",
        ),
        verify="nvidia-smi --query-gpu=clocks.sm,temperature.gpu,power.draw,clocks_event_reasons.active --format=csv "
        "-l 1 under load: clocks equal to the peers'",
        why="the GPU itself names the reason" if reasons else "equally busy peers of the same product clock higher",
        doubt="a single reading may catch a short spike" if reasons else "the reasons for its clock were not given",
    )


def _rows(slow: Sequence[Device]) -> Iterator[Evidence]:
    for device in slow[:2]:
        for key in (*_REASONS, "gpu.clock.sm_mhz", "gpu.temperature_c", "gpu.power_w"):
            fact = device.last(key)
            if fact is not None and (key not in _REASONS or fact.number):
                yield shown(f"{device.name} {key.removeprefix('gpu.')}", fact, fact.text)
