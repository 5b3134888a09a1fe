"""A device lowers its clock under load, because it is too hot or its power supply tells it to.

## Meaning
The driver names reasons for a clock below the highest: heat (software or hardware thermal slowdown), or a brake by
hardware (power supply, hardware slowdown). A device at its power limit is not meant: that is normal operation.

## Impact
Its kernels take longer, and every rank waits for it at the next collective; typically after minutes, when it is warm.

## Diagnosis
Samples of the driver while the steps ran and the device was busy: share of them with such a reason, the time slowed for
heat that the driver adds up, and the clock.

## Mitigation
Cooling and power of that node; drain it when it stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddiag.model.signals import JobFacts, StepBudget
from ddiag.model.signals_recorded import DeviceHealth
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD702",
    root_cause="RC-46",
    needs=(JobFacts, StepBudget, DeviceHealth),
    capture="ddiag run on the nodes of the job (it samples NVML), over some minutes",
    symptom="throughput decays after minutes; one GPU is slow and hot",
    evidence="thermal or hardware slowdown in a fifth of the samples of a busy device, and a lower clock",
    applies=lambda signals: signals.has(DeviceHealth),
)


@dataclass(frozen=True)
class Limits:
    samples: int = 5
    """Of the busy device; fewer show a moment."""
    share: float = 0.2
    """Of them, with such a reason."""
    clock_share: float = 0.92
    """Median clock / highest below which it costs something: devices of one kind differ by a few per cent."""
    critical_clock_share: float = 0.7
    """A hardware brake halves the clock."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    lowered = [row for row in signals[DeviceHealth].table.iter_rows(named=True) if _lowered(row, limits)]
    if not lowered:
        return
    worst = min(lowered, key=_clock_share)
    hot = _hot(worst) >= (worst["brake_share"] or 0.0)
    share = max(_hot(worst), worst["brake_share"] or 0.0)
    names = tuple(f"gpu{row['device']}" for row in lowered)
    hosts = tuple(sorted({row["host"] for row in lowered if row["host"]}))
    many = f"{len(lowered)} devices lower their clocks" if len(lowered) > 1 else f"{names[0]} lowers its clock"
    slow = _clock_share(worst) < limits.clock_share
    critical = _clock_share(worst) < limits.critical_clock_share
    yield Finding(
        title=f"{many}{f' on {hosts[0]}' if len(hosts) == 1 else ''} {share:.0%} of the time"
        f"{': too hot' if hot else ': told to by the power supply or hardware'}"
        f"{f', {_clock_share(worst):.0%} of the highest' if slow else ''}",
        severity=Severity.CRITICAL if critical else Severity.WARNING if slow else Severity.INFO,
        confidence=Confidence.HIGH,
        culprits=Culprits(
            ranks=tuple(sorted({rank for row in lowered for rank in row["ranks"] or ()})), hosts=hosts, devices=names
        ),
        evidence=(
            Evidence(
                "lowered for heat", round(worst["thermal_share"] or 0.0, 3), "of samples", limits.share, _of(worst)
            ),
            *(
                (Evidence("slowed for heat", round(slowed, 3), "of the time", limits.share, "the driver's own sum"),)
                if (slowed := worst["throttled_share"]) is not None
                else ()
            ),
            Evidence(
                "lowered by hardware", round(worst["brake_share"] or 0.0, 3), "of samples", limits.share, _of(worst)
            ),
            Evidence("clock", round(worst["sm_mhz"] or 0.0), "MHz", None, "median while busy"),
            Evidence("clock / highest", round(_clock_share(worst), 3), "", limits.clock_share, _of(worst)),
        ),
        fix=(
            "look at fans, inlet temperature and blocked air (hot), or power supplies and cables (brake): "
            "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`",
            "drain the node until then: it slows all others down",
        ),
        verify="`ddiag run` again: no such reason in the samples, and clocks within a few per cent of each other",
        why="the driver itself names the reason, in samples taken while the device was busy in the judged steps",
        doubt="samples are a second apart: short spells between them are not seen"
        if worst["throttled_share"] is None
        else "",
    )


def _lowered(row: Mapping[str, Any], limits: Limits) -> bool:
    share = max(_hot(row), row["brake_share"] or 0.0)
    return row["samples"] >= limits.samples and share >= limits.share


def _hot(row: Mapping[str, Any]) -> float:
    return max(row["thermal_share"] or 0.0, row["throttled_share"] or 0.0)


def _clock_share(row: Mapping[str, Any]) -> float:
    """1 where the driver does not tell."""
    return row["sm_mhz"] / row["max_sm_mhz"] if row["sm_mhz"] and row["max_sm_mhz"] else 1.0


def _of(row: Mapping[str, Any]) -> str:
    return f"{row['samples']} samples of gpu{row['device']} on {row['host']}"
