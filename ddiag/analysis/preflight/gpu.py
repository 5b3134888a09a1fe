"""GPUs: links, memory health, clocks, who uses them, and which reach each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddiag.analysis.preflight.words import GIB, amount, listed
from ddiag.model.preflight import Check, NodeReport, Outcome

HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
"""Bits of nvmlDeviceGetCurrentClocksEventReasons; a software power cap (0x4) and idle (0x1) are normal."""
IN_USE_BYTES = 2 * GIB
"""More than the driver and idle contexts take."""
HOT_C = 85


@dataclass(frozen=True)
class _Trouble:
    """One kind of trouble that some GPUs may have."""

    name: str
    outcome: Outcome
    has: Callable[[NodeReport, str], bool]
    what: str
    meaning: str
    fix: str


def checks(report: NodeReport) -> Iterator[Check]:
    """See the module."""
    gpus = sorted({device for device, _ in report.of("gpu.name")}, key=lambda name: (len(name), name))
    if not gpus:
        return
    names = sorted({str(name) for _, name in report.of("gpu.name")})
    yield Check(
        "GPUs",
        Outcome.OK if len(names) == 1 else Outcome.WARN,
        f"{len(gpus)} × {names[0]}" if len(names) == 1 else f"{len(gpus)} of {len(names)} models: {', '.join(names)}",
        "" if len(names) == 1 else "every step waits for the slowest model",
        "" if len(names) == 1 else "choose equal ones with CUDA_VISIBLE_DEVICES",
        "gpu",
    )
    found = [check for trouble in _TROUBLES for check in _said(report, trouble, gpus)]
    yield from found
    yield from _reach(report, len(gpus))
    healthy = "links, memory, clocks and temperature look fine"
    if not found:
        yield Check("GPU health", Outcome.OK, healthy, area="gpu")


def _said(report: NodeReport, trouble: _Trouble, gpus: list[str]) -> Iterator[Check]:
    ill = [gpu for gpu in gpus if trouble.has(report, gpu)]
    if ill:
        yield Check(
            trouble.name, trouble.outcome, f"{listed(ill)}: {trouble.what}", trouble.meaning, trouble.fix, "gpu"
        )


def _number(key: str) -> Callable[[NodeReport, str], float]:
    return lambda report, gpu: report.number(key, gpu) or 0.0


def _narrow(report: NodeReport, gpu: str) -> bool:
    """Width does not drop at idle (the generation does, so it is not looked at here)."""
    now, best = report.number("gpu.pcie.width.current", gpu), report.number("gpu.pcie.width.max", gpu)
    return now is not None and best is not None and 0 < now < best


def _mask(*bits: int) -> Callable[[NodeReport, str], bool]:
    return lambda report, gpu: any(int(report.number("gpu.clock.reasons_mask", gpu) or 0) & bit for bit in bits)


def _more_than(key: str, limit: float) -> Callable[[NodeReport, str], bool]:
    value = _number(key)
    return lambda report, gpu: value(report, gpu) > limit


def _used(report: NodeReport, gpu: str) -> bool:
    return (report.number("gpu.memory.used_bytes", gpu) or 0) > IN_USE_BYTES


_TROUBLES = (
    _Trouble(
        "PCIe width", Outcome.FAIL, _narrow, "fewer lanes than the card has",
        "copies to and from this GPU take two to sixteen times as long: a badly seated card, riser or slot",
        "nvidia-smi --query-gpu=index,pcie.link.width.current,pcie.link.width.max --format=csv; reseat the "
        "card, move the job",
    ),
    _Trouble(
        "memory repair failed", Outcome.FAIL, _more_than("gpu.ecc.remapped.failed", 0), "a row could not be remapped",
        "this GPU has no spare memory rows left: it will corrupt or kill jobs", "drain the node and replace the GPU",
    ),
    _Trouble(
        "memory repair pending", Outcome.WARN, _more_than("gpu.ecc.remapped.pending", 0), "a row waits to be remapped",
        "a memory error was found; it is repaired at the next reset, until then jobs may die there",
        "drain the node, then nvidia-smi --gpu-reset -i N (or reboot)",
    ),
    _Trouble(
        "memory errors", Outcome.WARN, _more_than("gpu.ecc.uncorrected", 0),
        "uncorrected errors since the driver loaded",
        "each of them ended a job or will end one", "nvidia-smi -q -d ECC,ROW_REMAPPER; run DCGM diagnostics "
                                                    "(dcgmi diag -r 3)",
    ),
    _Trouble(
        "clocks held down by hardware", Outcome.FAIL, _mask(HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE),
        "hardware slowdown is active",
        "the board protects itself from heat or from the power supply and halves its clocks: every step waits for it",
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; check fans, airflow, power cables",
    ),
    _Trouble(
        "clocks held down by heat", Outcome.WARN, _mask(SW_THERMAL), "thermal slowdown is active",
        "the driver lowers clocks to stay below the target temperature",
        "check cooling of this node and its neighbours",
    ),
    _Trouble(
        "temperature", Outcome.WARN, _more_than("gpu.temperature_c", HOT_C), f"above {HOT_C} °C",
        "close to where clocks are lowered", "check cooling",
    ),
    _Trouble(
        "GPU in use", Outcome.WARN, _used, f"more than {amount(IN_USE_BYTES)} taken already",
        "another job, or what is left of one, holds memory: yours will run out of it or run slowly",
        "nvidia-smi; fuser -v /dev/nvidia* shows processes that nvidia-smi does not list",
    ),
    _Trouble(
        "NVLink", Outcome.FAIL, _more_than("gpu.nvlink.down", 0), "links are down",
        "traffic between GPUs takes fewer links, or the slow way over PCIe",
        "nvidia-smi nvlink -s; check the fabric manager",
    ),
)  # fmt: skip


def _reach(report: NodeReport, gpus: int) -> Iterator[Check]:
    apart = report.number("gpu.p2p.pairs_without")
    if apart is None or gpus < 2:
        return
    if not apart:
        yield Check("GPU to GPU (P2P)", Outcome.OK, f"all {gpus} reach each other directly", area="gpu")
        return
    yield Check(
        "GPU to GPU (P2P)",
        Outcome.WARN,
        f"{apart:.0f} pairs do not reach each other: {report.text('gpu.p2p.without')}",
        "NCCL uses shared memory between them: a fraction of the bandwidth (normal for consumer cards and "
        "across CPU sockets)",
        "nvidia-smi topo -p2p r; check ACS, IOMMU and virtualisation",
        "gpu",
    )
