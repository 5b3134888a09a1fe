"""What ``tools.gpu_check`` holds a recording to: what the job says of itself.

Nothing here needs a device: the same lines judge a recording made up for a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddiag.schema.phases import Flag, Kind, Op, Phase, State
from ddiag.schema.ring import Record
from ddiag.schema.steps import StepRecord
from tools.bench_recorder import Verdicts

WARM_STEPS = 5
PEAK_TOLERANCE = 0.01
SEEN_COPIES = 0.8
"""Part of the copied bytes that the PCIe counter must show; it is read once a second."""
BUSY_PERCENT = 50
"""The device is busy for three seconds, and looked at every half second."""
HELD_SHARE = 0.8
SLACK_NS = 2_000_000
"""Of device times brought to the host's clock."""
NOT_HERE = "NOT POSSIBLE HERE"

Truth = dict[str, Any]


def equal(verdicts: Verdicts, what: str, value: object, wanted: object) -> None:
    verdicts.line(what, f"{value} (should be {wanted})", "PASS" if value == wanted else "FAIL")


def at_least(verdicts: Verdicts, what: str, value: float, least: float) -> None:
    verdicts.line(what, f"{value} (at least {least})", "PASS" if value >= least else "FAIL")


def reductions(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if one.kind == Kind.COLLECTIVE and one.op == Op.ALL_REDUCE]


def collectives(records: Sequence[Record], truth: Truth, verdicts: Verdicts) -> None:
    """Every layer is a bucket; the tier may look at some steps only."""
    reduced = reductions(records)
    per_step: dict[int, int] = {}
    for one in reduced:
        per_step[one.step] = per_step.get(one.step, 0) + 1
    looked = {count for step, count in per_step.items() if WARM_STEPS <= step < truth["trained_steps"]}
    equal(verdicts, "gradient reductions per recorded step", sorted(looked), [truth["layers"]])
    ended = sum(one.state == State.DONE for one in reduced)
    verdicts.line("reductions recorded", f"{len(reduced)} in {len(per_step)} steps; {ended} ended")


def device_times(records: Sequence[Record], truth: Truth, verdicts: Verdicts) -> None:
    """Of a recording with ``--device-timing``: every reduction of the training has both times, and they can be true.

    Those of one rank take no time to speak of, so order is judged; and one that the device came to late.
    """
    reduced = [one for one in reductions(records) if one.step < truth["trained_steps"]]
    timed = [one for one in reduced if one.flags & Flag.DEVICE_TIMED]
    equal(verdicts, "reductions timed on the device", len(timed), len(reduced))
    at_least(verdicts, "  of those, so many at all", len(timed), truth["layers"])
    over = truth["over_ns"]
    odd = [
        one
        for one in timed
        if not (one.enqueue_ns - SLACK_NS <= one.start_ns <= one.end_ns <= over[one.step] + SLACK_NS)
    ]
    equal(verdicts, "  begun before enqueued, or over after the step", len(odd), 0)
    held = [one for one in timed if one.bytes_in == truth["held_bytes"]]
    late_ms = max(((one.start_ns - one.enqueue_ns) / 1e6 for one in held), default=0.0)
    at_least(
        verdicts, "  the one held up began so late, ms", round(late_ms, 1), round(HELD_SHARE * truth["held_ms"], 1)
    )


def memory(found: Sequence[StepRecord], truth: Truth, verdicts: Verdicts) -> None:
    """The allocator's own peak: the job reads it at the same places and resets nothing."""
    pairs = list(zip(found[1:], truth["peaks"][1:], strict=False))
    worst = max(abs(one.device_peak_allocated_bytes / true - 1) for one, true in pairs)
    verdicts.at_most("memory peak, worst step, off by", worst, PEAK_TOLERANCE, "of it")
    rises = len({one.device_peak_allocated_bytes for one, _ in pairs})
    at_least(verdicts, "  different peaks among the steps", rises, 2)


def copies(found: Sequence[StepRecord], truth: Truth, verdicts: Verdicts) -> None:
    first, last = truth["copy_steps"]
    copying = [one.step for one in found if one.phase_ns[Phase.H2D]]
    equal(verdicts, "steps that copy to the device", copying == list(range(first, last)), True)
    spent = sum(one.phase_ns[Phase.H2D] for one in found)
    if spent:
        verdicts.line("copies to the device", f"{truth['copied_bytes'] / spent:.1f} GB/s in {len(copying)} steps")


def samples(entries: Sequence[dict[str, Any]], truth: Truth, verdicts: Verdicts, *, nvml: bool) -> None:
    """What NVML told of the job's device."""
    if not nvml:
        verdicts.line("samples of the device", "the module pynvml is not installed", NOT_HERE)
        return
    at = _own_device(entries, truth)
    devices = [
        one["devices"][at] for one in entries if one.get("kind") == "sample" and len(one.get("devices", ())) > at
    ]
    at_least(verdicts, "samples of the device", len(devices), 5)
    if not devices:
        return
    known = sorted({key for one in devices for key in one})
    verdicts.line("NVML told", " ".join(known))
    if "util" in known:
        at_least(verdicts, "highest utilisation, %", max(one.get("util", 0) for one in devices), BUSY_PERCENT)
    else:
        verdicts.line("highest utilisation", "NVML does not tell it (MIG?)", NOT_HERE)
    received = [one["pcie_rx_bytes"] for one in devices if "pcie_rx_bytes" in one]
    if len(received) > 1:
        seen = (received[-1] - received[0]) / truth["copied_bytes"]
        at_least(verdicts, "copied bytes seen on PCIe, part", round(seen, 3), SEEN_COPIES)
    else:
        verdicts.line("copied bytes seen on PCIe", "NVML has no such counter", NOT_HERE)


def _own_device(entries: Sequence[dict[str, Any]], truth: Truth) -> int:
    """Place of the job's device among all of the machine; the first where it cannot be told."""
    listed: list[dict[str, Any]] = next((one["devices"] for one in entries if one.get("kind") == "devices"), [])
    own = str(truth.get("uuid", "")).removeprefix("GPU-")
    return next((at for at, one in enumerate(listed) if own and own in str(one.get("uuid", ""))), 0)


def window(kernels: int, control: Truth, verdicts: Verdicts) -> None:
    """Kernels in the profiler window, where torch.profiler sees any."""
    if not control.get("kernels"):
        verdicts.line("kernels in the profiler window", "torch.profiler sees none without us either", NOT_HERE)
        return
    at_least(verdicts, "kernels in the profiler window", kernels, 1)


def unchanged(truth: Truth, control: Truth, how: str, verdicts: Verdicts) -> None:
    """The job computed what it does when nothing records it, bit by bit."""
    equal(verdicts, f"parameters and losses, {how}", truth["digest"] == control["digest"], True)
    equal(verdicts, f"captured graph, {how}", truth["graph"] == control["graph"], True)
