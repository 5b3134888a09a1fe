"""``nvidia-smi topo -m``, ``nvidia-smi nvlink -s|-e``, ``nvidia-smi dmon``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.facts import fact, number
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import NodeFact, Seen

_ANSI = re.compile(r"(?:\x1b|\ufffd)?\[\d*(?:;\d+)*m")
_HEADER = re.compile(r"^\s*GPU0\s+(?:GPU1|NIC0|mlx\w+|CPU Affinity)")
_LINK_WORD = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+|PSB|C2C|PAIR")
_LEGEND = re.compile(r"^\s*(NIC\d+): (\S+)\s*$")
_NVLINK_GPU = re.compile(r"GPU (\d+): ")
_NVLINK = re.compile(r"Link (\d+): (.+)")
_SPEED = re.compile(r"([\d.]+) GB/s")
_COUNTER = re.compile(r"((?:[A-Z][\w-]* ?)+?Errors?)(?: Count)?: (\d+)")
_MONITOR = {
    "pwr": "gpu.power_w",
    "gtemp": "gpu.temperature_c",
    "mtemp": "gpu.memory_temperature_c",
    "temp": "gpu.temperature_c",
    "sm": "gpu.utilization_pct",
    "mem": "gpu.memory_utilization_pct",
    "pclk": "gpu.clock.sm_mhz",
    "mclk": "gpu.clock.memory_mhz",
}


class NvidiaSmiLinks:
    """Topology, NVLink counters and the monitor's rows."""

    needles: tuple[str, ...] = ("GPU0", "(UUID: ", " GB/s", "<inactive>", "Errors: ", "Error Count: ", "# gpu")

    def __init__(self) -> None:
        self._gpu: str | None = None

    def line(self, line: Line) -> Iterator[Seen]:
        text = _ANSI.sub("", line.text)
        if _HEADER.search(text):
            yield from _topology(text, line)
        elif text.lstrip().startswith("# gpu"):
            yield from _monitor(text, line)
        elif _NVLINK_GPU.search(text):
            self._gpu = f"gpu{_NVLINK_GPU.search(text)[1]}"  # type: ignore[index] # just matched
        elif self._gpu is not None:
            yield from self._nvlink(text)

    def end(self) -> Iterable[Seen]:
        return ()

    def _nvlink(self, text: str) -> Iterator[NodeFact]:
        match = _NVLINK.search(text)
        if match is None:
            return
        key = f"gpu.nvlink.{match[1]}"
        speed, counter = _SPEED.search(match[2]), _COUNTER.search(match[2])
        if "inactive" in match[2].lower():
            yield NodeFact(f"{key}.gbs", match[2], 0.0, device=self._gpu)
        elif speed is not None:
            yield NodeFact(f"{key}.gbs", match[2], float(number(speed[1]) or 0.0), device=self._gpu)
        elif counter is not None:
            name = counter[1].strip().lower().replace(" ", "_").replace("-", "_")
            yield NodeFact(f"{key}.{name}", match[2], float(counter[2]), device=self._gpu)


def _cells(text: str) -> list[str]:
    """Cells are parted by tabs; pasted, by two or more blanks."""
    parts = text.split("\t") if "\t" in text else re.split(r"\s{2,}", text.strip())
    return [part.strip() for part in parts]


def _topology(header: str, line: Line) -> Iterator[NodeFact]:
    columns = [cell for cell in _cells(header) if cell]
    names, rows = {}, []
    for after in line.following(64):
        text = _ANSI.sub("", after.text)
        legend = _LEGEND.search(text)
        if legend is not None:
            names[legend[1].lower()] = legend[2]
        cells = [cell for cell in _cells(text) if cell]
        if len(cells) >= 2 and re.fullmatch(r"(?:GPU|NIC)\d+|mlx\w+", cells[0]):
            rows.append(cells)
    for cells in rows:
        yield from _topology_row(cells, columns, names)


def _topology_row(cells: list[str], columns: list[str], names: dict[str, str]) -> Iterator[NodeFact]:
    device = cells[0].lower()
    if not device.startswith("gpu"):
        return
    for column, cell in zip(columns, cells[1:], strict=False):
        other = names.get(column.lower(), column.lower())
        if _LINK_WORD.fullmatch(cell) and cell != "X":
            yield NodeFact("gpu.link", f"{other}={cell}", device=device)
        elif column == "CPU Affinity":
            yield NodeFact("gpu.cpu_affinity", cell, device=device)
        elif column == "NUMA Affinity":
            yield fact("gpu.numa", cell, device)


def _monitor(header: str, line: Line) -> Iterator[NodeFact]:
    columns = header.lstrip("# ").split()
    for after in line.following(100_000):
        cells = after.text.split()
        if after.text.lstrip().startswith("#"):
            continue
        if len(cells) != len(columns) or not cells[0].isdigit():
            return
        for column, cell in zip(columns[1:], cells[1:], strict=True):
            if column in _MONITOR and cell != "-":
                yield fact(_MONITOR[column], cell, f"gpu{cells[0]}")
