"""Megatron-LM: the iteration line, timers over ranks, the straggler detector, arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Metric, Seen, Setting, Value

_NUMBER = r"([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))"
_ITERATION = re.compile(r"iteration\s+(\d+)/\s*(\d+) \|(?P<rest>.*)")
_PAIR = re.compile(rf"\s*([a-zA-Z][^|:]*?): *{_NUMBER}\s*(?:\||$)")
_NAMES = {
    "elapsed time per iteration (ms)": "step_ms", "lm loss": "loss", "loss": "loss", "loss scale": "loss_scale",
    "grad norm": "grad_norm", "number of skipped iterations": "skipped_iterations",
    "number of nan iterations": "nan_iterations", "learning rate": "learning_rate",
    "global batch size": "global_batch_size", "throughput per GPU (TFLOP/s/GPU)": "tflops",
    "load_balancing_loss": "moe.load_balancing_loss", "consumed samples": "consumed_samples",
    "tokens-per-second-per-gpu": "tokens_per_s_per_gpu", "params norm": "params_norm",
}  # fmt: skip
_TIMERS = re.compile(r"\((?:min, max|minmax)\) time across ranks \(ms\)")
_ALL_TIMERS = re.compile(r"times across ranks \(ms\)")
_MAX_TIMERS = re.compile(r"max time across ranks \(ms\)")
_TIMER = re.compile(rf"^\s*(?:\S+\s+)?([a-zA-Z][\w\-/ ]*?) ?\.{{2,}}: \({_NUMBER}, {_NUMBER}\)")
_MAX_TIMER = re.compile(rf"^\s*(?:\S+\s+)?([a-zA-Z][\w\-/ ]*?) ?\.{{2,}}: {_NUMBER}\s*$")
_TIMER_NAME = re.compile(r"^\s*(?:\S+\s+)?([a-zA-Z][\w\-/ ]*):\s*$")
_RANK_TIME = re.compile(rf"rank\s+(\d+): {_NUMBER}")
_TIMER_LINES = 80
_FIGURE = re.compile(r"(Mn|Mx)(Rtt|Pwr|Tmp|Utl|Clk|DRtt|Etpt)/Rnk: ([\d.]+)\s*[A-Za-z%]*/(\d+)")
_FIGURES = {
    "Rtt": "rtt_ms", "Pwr": "power_w", "Tmp": "temp_c", "Utl": "util_pct", "Clk": "clock_mhz", "DRtt": "data_ms",
    "Etpt": "tflops",
}  # fmt: skip
_ORDER = re.compile(r"(Bottom|Top) \d+ Ranks with (?:lowest|highest) Etpt\(?(?:TF)?\)?:(.*)")
_RANK_FLOPS = re.compile(r"([\d.]+)\s*(?:TF)?/(\d+)|\[?(\d+)\]?: ([\d.]+)")
_PARAMETERS = re.compile(r"number of parameters on \(tensor, pipeline\) model parallel rank \((\d+), (\d+)\): (\d+)")
_MEMORY = re.compile(
    rf"memory \(MB\) \| allocated: {_NUMBER} \| max allocated: {_NUMBER} \| reserved: {_NUMBER} \| max reserved: "
    rf"{_NUMBER}"
)
_ARGUMENTS = re.compile(r"-{5,} arguments -{5,}")
_ARGUMENT = re.compile(r"(?:^|\s)([a-z]\w+) \.{2,} (.*)$")
_MOST_ARGUMENTS = 1500
_LARGEST_POWER_W = 5000.0
"""No accelerator draws that much: the number is milliwatts, as NVML gives them, whatever the label says."""


class Megatron:
    """Megatron-LM and what is built on it (Megatron-DeepSpeed, NeMo, FlagScale)."""

    needles: tuple[str, ...] = (
        " iteration ", "across ranks (ms)", "Rtt/Rnk", "Ranks with", "model parallel rank (", "max allocated:",
        " arguments ---",
    )  # fmt: skip

    def line(self, line: Line) -> Iterator[Seen]:
        if found := _ITERATION.search(line.text):
            yield from _iteration(int(found[1]), found["rest"])
        if "across ranks (ms)" in line.text:
            yield from _timers(line)
        if "/Rnk:" in line.text:
            yield from _straggler(line.text)
        if found := _ORDER.search(line.text):
            yield _order(found)
        if found := _PARAMETERS.search(line.text):
            numbers: list[Value] = [int(value) for value in found.groups()]
            yield Event(
                "megatron.parameters", dict(zip(("tensor_rank", "pipeline_rank", "parameters"), numbers, strict=True))
            )
        if found := _MEMORY.search(line.text):
            names = ("allocated_mb", "max_allocated_mb", "reserved_mb", "max_reserved_mb")
            yield Event("megatron.memory", dict(zip(names, map(float, found.groups()), strict=True)))
        if _ARGUMENTS.search(line.text):
            yield from _arguments(line)

    def end(self) -> Iterator[Seen]:
        return iter(())


def _iteration(step: int, rest: str) -> Iterator[Seen]:
    for name, value in _PAIR.findall(rest):
        known = _NAMES.get(name.strip())
        if known:
            yield Metric(known, float(value), step)


def _timers(line: Line) -> Iterator[Seen]:
    """The indented lines below a timer header: least and largest, largest only, or one line per rank."""
    if _TIMERS.search(line.text):
        for later in line.own(_TIMER_LINES):
            if (found := _TIMER.search(later.text)) is None:
                return
            yield Event(
                "megatron.timer", {"timer": found[1].strip(), "min_ms": float(found[2]), "max_ms": float(found[3])}
            )
    elif _MAX_TIMERS.search(line.text):
        for later in line.own(_TIMER_LINES):
            if (found := _MAX_TIMER.search(later.text)) is None:
                return
            yield Event("megatron.timer", {"timer": found[1].strip(), "max_ms": float(found[2])})
    elif _ALL_TIMERS.search(line.text):
        yield from _timers_of_ranks(line)


def _timers_of_ranks(line: Line) -> Iterator[Seen]:
    name, times = "", {}
    for later in line.own(200 * _TIMER_LINES):
        if found := _RANK_TIME.search(later.text):
            times[found[1]] = float(found[2])
            continue
        if name and times:
            yield Event("megatron.timer_ranks", {"timer": name, "ms": dict(times)})
            times = {}
        if (head := _TIMER_NAME.search(later.text)) is None:
            return
        name = head[1].strip()
    if name and times:
        yield Event("megatron.timer_ranks", {"timer": name, "ms": dict(times)})


def _straggler(text: str) -> Iterator[Event]:
    fields: dict[str, Value] = {}
    for side, figure, number, rank in _FIGURE.findall(text):
        name = f"{'min' if side == 'Mn' else 'max'}_{_FIGURES[figure]}"
        value = float(number)
        if figure == "Pwr" and value > _LARGEST_POWER_W:
            value /= 1000.0
        fields[name], fields[f"{name}_rank"] = value, int(rank)
    if fields:
        yield Event("megatron.straggler", fields)


def _order(found: re.Match[str]) -> Event:
    ranks: list[Value] = []
    for flops, rank, other_rank, other_flops in _RANK_FLOPS.findall(found[2]):
        ranks.append({"rank": int(rank or other_rank), "tflops": float(flops or other_flops)})
    return Event("megatron.etpt_order", {"lowest" if found[1] == "Bottom" else "highest": ranks})


def _arguments(line: Line) -> Iterator[Setting]:
    for later in line.own(_MOST_ARGUMENTS):
        if "end of arguments" in later.text:
            return
        if found := _ARGUMENT.search(later.text):
            yield Setting("megatron", found[1], found[2].strip())
