"""DeepSpeed's log: timers under their old and new names, throughput, memory, overflows, the comms logger."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.sizes import AMOUNT, bytes_of
from ddiag.model.incident import Event, Metric, Seen, Value

_NUMBER = r"(-?\d[\d.]*(?:e[+-]?\d+)?)"
_TIMERS = re.compile(r"time \(ms\) \|(?P<rest>.*)")
_TIMER = re.compile(rf"(\w+): {_NUMBER}")
_OLD_NAMES = {"forward": "fwd", "backward": "bwd"}
_RATE = re.compile(rf"(RunningAvgSamplesPerSec|CurrSamplesPerSec|(?<!\w)SamplesPerSec)={_NUMBER}")
_STEP = re.compile(r"(?:global_step|[^_]step)=(\d+)|^0/(\d+), Samples")
_ALLOCATED = re.compile(rf"\b(Max)?MemAllocated={_NUMBER}GB")
_SKIPPED = re.compile(r"step=(\d+), skipped=(\d+), lr=")
_OVERFLOWS = (
    (re.compile(rf"Attempted loss scale: {_NUMBER}, reducing to {_NUMBER}"), "deepspeed"),
    (re.compile(rf"Attempted loss scale: {_NUMBER}, but hysteresis is (\d+)"), "hysteresis"),
    (re.compile(rf"Gradient overflow\.\s+Skipping step, loss scaler \d+ reducing loss scale to {_NUMBER}"), "apex"),
    (re.compile(rf"gradient overflow detected, ignoring gradient, setting loss scale to: {_NUMBER}"), "fairseq"),
)
_NOT_FINITE = "OVERFLOW! Skipping step. Gradients are non-finite"
_MINIMUM = re.compile(r"Current loss scale already at minimum|Minimum loss scale reached \((?P<scale>[\d.e-]+)\)")
_FLUSHES = re.compile(r"(\d+) pytorch allocator cache flushes since last step")
_USAGE = re.compile(rf"MA {_NUMBER} GB\s+Max_MA {_NUMBER} GB\s+CA {_NUMBER} GB\s+Max_CA {_NUMBER} GB")
_HOST = re.compile(rf"CPU Virtual Memory:\s+used = {_NUMBER} GB, percent = {_NUMBER}%")
_WHERE = re.compile(r"see_memory_usage\]\s+(?!MA |CPU )(\S.*)")
_VERSION = re.compile(r"DeepSpeed info: version=([\w.+-]+)")
_OPTIMIZER = re.compile(r"DeepSpeed (?:Basic|Final) Optimizer = (\w+)")
_STAGE = re.compile(r"Creating (?:\S+ )?(?:ZeRO|zero) stage (\d) optimizer|Creating (?:torch\.)?\w+ ZeRO stage (\d)")
_VECTOR = re.compile(r"Adam Optimizer #\d+ is created with (\w+) arithmetic capability")
_CALL = re.compile(
    rf"comm op: (?P<op>\w+)\s*\|(?: [^|]*\|)? time \(ms\): (?P<ms>[\d.]+) \| msg size: {AMOUNT} \| "
    r"algbw \(Gbps\): (?P<alg>[\d.]+)\s*\| busbw \(Gbps\): (?P<bus>[\d.]+)"
)
_REJECTED = re.compile(
    r"(Check batch related parameters\. train_batch_size is not equal to .*|"
    r"DeepSpeedConfig: .* is not defined|bfloat16 and fp16 modes cannot be simultaneously enabled)"
)
_EXTRA = re.compile(r"validation errors? for DeepSpeed(\w*)Config")
_SUMMARY = re.compile(r"Comm\. Op\s+Message Size\s+Count\s+Total (?:Latency|comm lat)\(ms\)")
_SUMMARY_ROWS = 4000
_OP_ALONE = re.compile(r"^\s*(?:\[[^\]]*\]\s*)*(?P<op>[a-z][a-z_]+)(?: \| \[Caller Func: [^\]]*\])?\s*$")
_ROW = re.compile(rf"^\s*(?:\S*\s+)?{AMOUNT}\s+(?P<count>\d+)(?P<rest>(?:\s+-?[\d.]+){{3,6}})\s*$")


class DeepSpeed:
    """What DeepSpeed (and the loss scalers of apex and fairseq) print."""

    needles: tuple[str, ...] = (
        "time (ms) |", "SamplesPerSec", ", skipped=", "loss scale", "OVERFLOW!", "allocator cache flushes",
        "see_memory_usage", "Max_MA", "CPU Virtual Memory", "DeepSpeed info", "DeepSpeed Basic Optimizer",
        "DeepSpeed Final Optimizer", "ZeRO stage", "arithmetic capability", "comm op: ", "Comm. Op",
        "Check batch related", "DeepSpeedConfig: ", "simultaneously enabled", "for DeepSpeed",
    )  # fmt: skip

    def __init__(self) -> None:
        self._where = ""
        self._readers: tuple[Callable[[Line], Iterator[Seen]], ...] = (
            _timers, _throughput, _overflow, self._memory, _setup, _call, _summary, _flushes,
        )  # fmt: skip

    def line(self, line: Line) -> Iterator[Seen]:
        for reader in self._readers:
            yield from reader(line)

    def end(self) -> Iterator[Seen]:
        return iter(())

    def _memory(self, line: Line) -> Iterator[Seen]:
        if found := _USAGE.search(line.text):
            names = ("allocated_gb", "max_allocated_gb", "cached_gb", "max_cached_gb")
            values = dict(zip(names, map(float, found.groups()), strict=True))
            yield Event("ds.memory", {"where": self._where, **values})
        elif found := _HOST.search(line.text):
            yield Event(
                "ds.host_memory", {"used_gb": float(found[1]), "percent": float(found[2]), "where": self._where}
            )
            yield Metric("host.memory_used_gb", float(found[1]))
        elif found := _WHERE.search(line.text):
            self._where = found[1].strip()


def _timers(line: Line) -> Iterator[Seen]:
    if found := _TIMERS.search(line.text):
        for name, value in _TIMER.findall(found["rest"]):
            head, _, tail = name.partition("_")
            new = "_".join(filter(None, (_OLD_NAMES.get(head, head), tail)))
            yield Metric(f"ds.{new}_ms", float(value))


def _throughput(line: Line) -> Iterator[Seen]:
    if found := _SKIPPED.search(line.text):
        yield Metric("ds.skipped_steps", float(found[2]), step=int(found[1]))
    rates = _RATE.findall(line.text)
    if not rates:
        return
    at = _STEP.search(line.text)
    step = int(at[1] or at[2]) if at else None
    names = {"CurrSamplesPerSec": "samples_per_s", "RunningAvgSamplesPerSec": "samples_per_s_mean"}
    yield from (Metric(names.get(name, "samples_per_s_mean"), float(value), step) for name, value in rates)
    for most, value in _ALLOCATED.findall(line.text):
        yield Metric("memory.max_allocated_gb" if most else "memory.allocated_gb", float(value), step)


def _overflow(line: Line) -> Iterator[Seen]:
    if found := _MINIMUM.search(line.text):
        yield Event("ds.scale_minimum", {"scale": float(found["scale"])} if found["scale"] else {})
    if _NOT_FINITE in line.text:
        yield Event("ds.overflow", {"by": "non_finite"})
    for pattern, by in _OVERFLOWS:
        if found := pattern.search(line.text):
            yield _overflow_event(by, [float(value) for value in found.groups()])
            return


def _overflow_event(by: str, values: list[float]) -> Event:
    if by == "hysteresis":
        fields: dict[str, Value] = {"scale": values[0], "new_scale": values[0], "hysteresis": True}
    elif by == "deepspeed":
        fields = {"scale": values[0], "new_scale": values[1], "hysteresis": False}
    else:
        fields = {"scale": 2.0 * values[0], "new_scale": values[0], "hysteresis": False}
    return Event("ds.overflow", {**fields, "by": "deepspeed" if by == "hysteresis" else by})


def _flushes(line: Line) -> Iterator[Seen]:
    if found := _FLUSHES.search(line.text):
        yield Event("ds.cache_flushes", {"count": int(found[1])})


def _setup(line: Line) -> Iterator[Seen]:
    if found := _REJECTED.search(line.text):
        yield Event("ds.config_rejected", {"message": found[1]})
    elif found := _EXTRA.search(line.text):
        said = [later.text.strip() for later in line.own(2)]
        yield Event("ds.config_rejected", {"message": f"{found[0]}: {' '.join(said)}"[:300]})
    if found := _VERSION.search(line.text):
        yield Event("ds.version", {"version": found[1]})
    for name, pattern in (("optimizer", _OPTIMIZER), ("vector", _VECTOR)):
        if found := pattern.search(line.text):
            yield Event("ds.optimizer", {name: found[1]})
    if found := _STAGE.search(line.text):
        yield Event("ds.optimizer", {"stage": int(found[1] or found[2])})


def _call(line: Line) -> Iterator[Seen]:
    if found := _CALL.search(line.text):
        fields: dict[str, Value] = {
            "op": found["op"].strip(), "ms": float(found["ms"]), "message_bytes": bytes_of(found[3], found[4]),
            "algbw_gbps": float(found["alg"]), "busbw_gbps": float(found["bus"]),
        }  # fmt: skip
        yield Event("ds.comm_call", fields)


def _summary(line: Line) -> Iterator[Seen]:
    """The rows below a summary's header: the name of an operation alone, then a row for each message size."""
    if not _SUMMARY.search(line.text):
        return
    straggler, op, strange = "straggler" in line.text, "", 0
    for later in line.following(_SUMMARY_ROWS):
        if row := _ROW.search(later.text):
            strange = 0
            yield _summary_event(op, row, straggler=straggler, source=later)
        elif name := _OP_ALONE.search(later.text) or _OP_ALONE.search(later.raw):
            op, strange = name["op"], 0
        elif (strange := strange + 1) > 3:
            return


def _summary_event(op: str, row: re.Match[str], *, straggler: bool, source: Line) -> Event:
    numbers = [float(value) for value in row["rest"].split()]
    fields: dict[str, Value] = {"op": op, "message_bytes": bytes_of(row[1], row[2]), "count": int(row["count"])}
    if straggler and len(numbers) >= 4:
        fields |= {"total_ms": numbers[0], "straggler_ms": numbers[1], "avg_ms": numbers[2]}
    else:
        names = ("total_ms", "avg_ms", "algbw_gbps", "busbw_gbps")
        fields |= dict(zip(names, numbers, strict=False))
    return Event("ds.comm_summary", fields, text=source.text)
