"""A device's link to the host runs with fewer lanes or at a lower generation than it can, or repeats transfers.

## Meaning
The link was trained at a part of its width (a bad contact, riser or slot) or speed, or loses packets and sends them
again. An idle link saves power and is slow; what counts is the best that was seen while the device was busy.

## Impact
Copies between host and device, and collectives without NVLink, take two or four times as long.

## Diagnosis
Samples of the driver while the steps ran and the device was busy: never the width or generation that device and slot
allow, or a count of repeated transfers that rises all the time.

## Mitigation
Reseat the board, change riser or slot, look at the firmware's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddiag.model.signals import Copies, JobFacts, StepBudget
from ddiag.model.signals_recorded import DeviceHealth
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD703",
    root_cause="RC-48",
    needs=(JobFacts, StepBudget, DeviceHealth),
    optional=(Copies,),
    capture="ddiag run on the nodes of the job (it samples NVML)",
    symptom="one GPU's copies take twice as long; `lspci` says (downgraded)",
    evidence="link width or generation of a busy device below what device and slot allow, in every sample; hundreds of "
    "repeated transfers a minute",
    applies=lambda signals: signals.has(DeviceHealth),
)


_FIX = (
    "`sudo lspci -vv | grep -E 'LnkCap:|LnkSta:'` for (downgraded); dmesg for AER errors",
    "reseat the board, change riser or slot; firmware: link speed of the slot not below Gen of the board",
)


@dataclass(frozen=True)
class Limits:
    samples: int = 5
    """Of the busy device or link; fewer may have met the link asleep."""
    replays_per_min: float = 120.0
    """A sound link repeats a transfer now and then; one that does so twice a second is bad."""
    exposed_share: float = 0.02
    """Exposed copies / step from which it is a warning; below it nobody waits for the link."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    rows = [row for row in signals[DeviceHealth].table.iter_rows(named=True) if row["link_samples"] >= limits.samples]
    below = [row for row in rows if _lanes(row) < 1.0 or _generation(row) < 1.0]
    if not below:
        yield from _repeats(rows, limits)
        return
    budget, copies = signals[StepBudget], signals.get(Copies)
    exposed = copies.exposed_ms / budget.step_ms if copies is not None and budget.step_ms > 0 else 0.0
    worst = min(below, key=lambda row: _lanes(row) * _generation(row))
    names = tuple(f"gpu{row['device']}" for row in below)
    hosts = tuple(sorted({row["host"] for row in below if row["host"]}))
    yield Finding(
        title=f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
        f"{f' on {hosts[0]}' if len(hosts) == 1 else ''}: the link to the host runs at {_words(worst)}",
        severity=Severity.WARNING if exposed >= limits.exposed_share else Severity.INFO,
        confidence=Confidence.HIGH if len(below) < len(rows) else Confidence.MEDIUM,
        culprits=Culprits(
            ranks=tuple(sorted({rank for row in below for rank in row["ranks"] or ()})), hosts=hosts, devices=names
        ),
        evidence=(
            *(Evidence(f"gpu{row['device']}", _words(row), "", None, _of(row)) for row in below[:4]),
            Evidence("devices below their best", len(below), f"of {len(rows)}", None, ""),
            Evidence("exposed copies", round(exposed, 4), "of step", limits.exposed_share, ""),
        ),
        fix=_FIX,
        verify="under load: `nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,"
        "pcie.link.width.current,pcie.link.width.max --format=csv`",
        why="the best that was seen while the device was busy is less than what the driver says is possible",
        doubt="where all boards of a kind are like this, the slots may be built so"
        if len(below) == len(rows)
        else "a link that wakes up only for copies may have been asleep in every sample",
    )


def _repeats(rows: Sequence[Mapping[str, Any]], limits: Limits) -> Iterator[Finding]:
    """Links of full width that lose packets; where all do, it is the platform's or the counter's way."""
    bad = [row for row in rows if (row["replays_per_min"] or 0.0) >= limits.replays_per_min]
    if not bad or 2 * len(bad) > len(rows) > 1:
        return
    worst = max(bad, key=lambda row: float(row["replays_per_min"]))
    names = tuple(f"gpu{row['device']}" for row in bad)
    hosts = tuple(sorted({row["host"] for row in bad if row["host"]}))
    yield Finding(
        title=f"{', '.join(names[:4])}{f' on {hosts[0]}' if len(hosts) == 1 else ''}: the link to the host repeats "
        f"{worst['replays_per_min']:,.0f} transfers a minute",
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        culprits=Culprits(
            ranks=tuple(sorted({rank for row in bad for rank in row["ranks"] or ()})), hosts=hosts, devices=names
        ),
        evidence=tuple(
            Evidence(
                f"gpu{row['device']} repeats",
                round(row["replays_per_min"] or 0.0, 1),
                "a minute",
                limits.replays_per_min,
                _of(row),
            )
            for row in (*bad[:3], *[row for row in rows if row not in bad][:1])
        ),
        fix=_FIX,
        verify="`nvidia-smi -q | grep -i replay` twice, a minute apart, under load: the counters stay where they are",
        why="its counter of repeated transfers rises far faster than those of its peers",
        doubt="" if len(rows) > 1 else "there is no other device to compare with",
    )


def _lanes(row: Mapping[str, Any]) -> float:
    return _part(row["pcie_width"], row["max_pcie_width"])


def _generation(row: Mapping[str, Any]) -> float:
    return _part(row["pcie_gen"], row["max_pcie_gen"])


def _part(seen: float | None, best: int | None) -> float:
    """1 where the driver does not tell (or says 0)."""
    return seen / best if seen and best else 1.0


def _words(row: Mapping[str, Any]) -> str:
    parts = []
    if _lanes(row) < 1.0:
        parts.append(f"x{row['pcie_width']:.0f} of x{row['max_pcie_width']}")
    if _generation(row) < 1.0:
        parts.append(f"Gen{row['pcie_gen']:.0f} of Gen{row['max_pcie_gen']}")
    return ", ".join(parts)


def _of(row: Mapping[str, Any]) -> str:
    return f"{row['link_samples']} samples while busy, {row['host']}"
