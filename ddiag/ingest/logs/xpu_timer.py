"""Metrics of DLRover's xpu_timer, as its Prometheus endpoint prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Metric, Seen

_SAMPLE = re.compile(r"\bXPU_TIMER_(?P<name>[A-Z0-9_]+)\{(?P<labels>[^}]*)\}\s+(?P<value>[-+]?[\d.]+(?:[eE][-+]?\d+)?)")
_LABEL = re.compile(r"(\w+)=\"([^\"]*)\"")


class XpuTimer:
    """``xpu_timer.hang`` of each rank, and the latencies of kernels by class of size."""

    needles: tuple[str, ...] = ("XPU_TIMER_",)

    def line(self, line: Line) -> Iterator[Seen]:
        found = _SAMPLE.search(line.text)
        if found is None:
            return
        labels, value = dict(_LABEL.findall(found["labels"])), float(found["value"])
        rank = int(labels["rank"]) if labels.get("rank", "").isdigit() else None
        host = labels.get("pod_name") or labels.get("ip")
        if found["name"] == "COMMON_HANG":
            yield Event("xpu_timer.hang", {"hang": value > 0}, rank, host)
        elif found["name"].endswith("_KERNEL_AVG_LATENCY"):
            kind = found["name"].removesuffix("_KERNEL_AVG_LATENCY").lower()
            size = labels.get("level", labels.get("operation", ""))
            yield Metric(f"xpu_timer.{kind}.{size}_us", value, None, rank, host)

    def end(self) -> Iterator[Seen]:
        return iter(())
