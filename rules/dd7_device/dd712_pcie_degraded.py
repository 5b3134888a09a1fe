"""A GPU's PCIe link came up with fewer lanes or at a lower speed than it could.

## Meaning
The link trained at x8 of x16, or stays at an old generation under load: a card not fully seated, a riser, a slot, a
BIOS setting. Generation 1 while idle is power saving; the number of lanes never drops for that.

## Impact
Copies from and to the host, and traffic to GPUs and NICs behind the link, run at a half or less.

## Diagnosis
pcie.link.width.current against max at any time, generation only under load; lspci `LnkSta … (downgraded)`; corrected
AER errors on its port.

## Mitigation
Reseat the card, change riser or slot, check the BIOS; replace it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddiag.model.incident import Event
from ddiag.model.placement import Placement
from ddiag.model.signals_incident import Events, NodeFacts
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.devices import Device, blame, gpus
from ddiag.rulekit.proof import lines, shown

RULE = Rule(
    id="DD712",
    root_cause="RC-48",
    needs=(NodeFacts,),
    optional=(Events, Placement),
    capture="nvidia-smi --query-gpu=index,pci.bus_id,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max,utilization.gpu --format=csv during training",
    symptom="one GPU's host copies or cross-GPU bandwidth are halved",
    evidence="width below the maximum; generation below the maximum under load; lspci (downgraded)",
    applies=lambda signals: (
        (facts := signals.get(NodeFacts)) is not None and bool(facts.of("gpu.pcie.width", "gpu.pcie.gen", "pcie.width"))
    ),
    explained_by=("DD907",),
)


@dataclass(frozen=True)
class Limits:
    busy_pct: float = 30.0
    """Utilisation from which the generation must be the highest; idle GPUs save power at generation 1."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    placement = signals.get(Placement)
    devices = [device for device in gpus(signals[NodeFacts], placement) if _is_gpu(device)]
    narrow = [device for device in devices if _narrow(device)]
    slow = [device for device in devices if device not in narrow and _old_generation(device, limits)]
    ports = _errors(signals.get(Events))
    for bad, what in ((narrow, "lanes"), (slow, "generation")):
        if bad:
            yield _finding(bad, what, devices, ports, placement)


def _is_gpu(device: Device) -> bool:
    """lspci describes NICs and bridges as well."""
    name = device.text("pcie.name")
    return device.name.startswith("gpu") or "gpu.pcie.width" in device.facts or "NVIDIA" in name


def _lanes(device: Device) -> tuple[float, float] | None:
    for now, most in (("gpu.pcie.width", "gpu.pcie.width_max"), ("pcie.width", "pcie.width_max")):
        current, highest = device.number(now), device.number(most)
        if current and highest:
            return current, highest
    return None


def _narrow(device: Device) -> bool:
    lanes = _lanes(device)
    return lanes is not None and lanes[0] < lanes[1]


def _old_generation(device: Device, limits: Limits) -> bool:
    now, most = device.number("gpu.pcie.gen"), device.number("gpu.pcie.gen_max")
    busy = device.number("gpu.utilization_pct")
    return bool(now and most and now < most and busy is not None and busy >= limits.busy_pct)


def _errors(events: Events | None) -> tuple[Event, ...]:
    return events.of("kernel.aer") if events is not None else ()


def _finding(
    bad: Sequence[Device], what: str, devices: Sequence[Device], ports: Sequence[Event], placement: Placement | None
) -> Finding:
    named = blame(bad, placement)
    alike = len(bad) == len(devices) and len(devices) > 1
    which = ", ".join(named.devices[:4]) if len(named.devices) <= 4 else f"{len(named.devices)} GPUs"
    on = f" on {', '.join(named.hosts[:2])}" if named.hosts else ""
    return Finding(
        title=f"PCIe link of {which}{on} runs {_how(bad[0], what)}",
        severity=Severity.INFO if alike else Severity.WARNING,
        confidence=Confidence.MEDIUM if alike or what == "generation" else Confidence.HIGH,
        culprits=named,
        evidence=(*_rows(bad, what), *lines("PCIe errors", ports, 2)),
        fix=(
            "reseat the GPU and its riser; try the card in another slot: does the fault go with it?",
            "BIOS: slot set to x16 and to the right generation, no bifurcation",
            "replace the card or the riser",
        ),
        verify="during load: nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv "
        "shows the maximum; bandwidthTest --memory=pinned equal on all GPUs",
        why="the number of lanes does not drop to save power"
        if what == "lanes"
        else "the GPU was busy when it was read",
        doubt="all GPUs of the machine are alike: its slots may be built like this" if alike else "",
    )


def _how(device: Device, what: str) -> str:
    if what == "lanes":
        now, most = _lanes(device) or (0, 0)
        return f"on {now:.0f} of {most:.0f} lanes"
    return f"at generation {device.number('gpu.pcie.gen'):.0f} of {device.number('gpu.pcie.gen_max'):.0f} under load"


def _rows(bad: Sequence[Device], what: str) -> Iterator[Evidence]:
    keys = (
        ("gpu.pcie.width", "gpu.pcie.width_max", "pcie.width", "pcie.width_max")
        if what == "lanes"
        else ("gpu.pcie.gen", "gpu.pcie.gen_max", "gpu.utilization_pct")
    )
    for device in bad[:3]:
        for key in keys:
            fact = device.last(key)
            if fact is not None:
                yield shown(f"{device.name} {key}", fact, fact.number or fact.text)
