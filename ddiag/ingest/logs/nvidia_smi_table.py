"""The table ``nvidia-smi`` prints without options, ``nvidia-smi -L``, and its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.bus_ids import BUS, bus_id
from ddiag.ingest.logs.facts import fact
from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, NodeFact, Seen, Setting

_ROW = re.compile(
    rf"\|\s*(\d+)\s+(\S.*?)\s+(?:On|Off|N/A|Enabled|Disabled)\s*\|\s*([0-9A-Fa-f]{{8}}:{BUS})\s+\S+\s*\|(.*)"
)
_DRIVER = re.compile(r"Driver Version: ([\d.]+)(?:.*?CUDA Version: ([\d.]+))?")
_PROCESS = re.compile(
    r"\|\s+(\d+)\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(\d+)\s+(C\+G|C|G|M\+C)\s+(\S.*?)\s+(\d+)\s?MiB\s*\|"
)
_LIST = re.compile(r"GPU (\d+): (\S.*?) \(UUID: (GPU-[\w-]+)\)")
_UTILISATION = re.compile(r"(\d+)\s?%")
_WATT = re.compile(r"(\d+)W / +(\d+)W")
_MEMORY = re.compile(r"(\d+)MiB / +(\d+)MiB")
_CELSIUS = re.compile(r"\b(\d+)C\b")
_PSTATE = re.compile(r"\b(P\d+)\b")
_ERRORS = (
    ("lost", re.compile(rf"(?:Unable to determine the device handle for GPU ?({BUS})?.*GPU is lost|GPU is lost)")),
    (
        "unknown_error",
        re.compile(rf"Unable to determine the device handle for (?:GPU ?\d*:? ?)?({BUS})?.*Unknown Error"),
    ),
    ("driver_mismatch", re.compile(r"Failed to initialize NVML: Driver/library version mismatch")),
    ("no_devices", re.compile(r"No devices were found")),
    ("no_driver", re.compile(r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver")),
    ("unknown_error", re.compile(r"Failed to initialize NVML: Unknown Error")),
)
_ERR_CELL = re.compile(r"\bERR!")


class NvidiaSmiTable:
    """Rows of GPUs and processes."""

    needles: tuple[str, ...] = (
        "| 0000",
        "Driver Version:",
        "MiB |",
        "GPU-",
        "Unable to determine the device",
        "NVML",
        "No devices were found",
        "couldn't communicate with the NVIDIA",
        "GPU is lost",
        "ERR!",
    )

    def __init__(self) -> None:
        self._bus: dict[int, str] = {}

    def line(self, line: Line) -> Iterator[Seen]:
        row = _ROW.search(line.text)
        if row is not None:
            yield from self._gpu(row, line)
            return
        process = _PROCESS.search(line.text)
        if process is not None:
            device = f"gpu{process[1]}"
            yield fact("gpu.process", f"{process[2]} {process[4]}", device, float(process[5]))
            return
        driver = _DRIVER.search(line.text)
        if driver is not None:
            yield from _driver(driver)
        listed = _LIST.search(line.text)
        if listed is not None:
            yield NodeFact("gpu.name", listed[2], device=f"gpu{listed[1]}")
            yield NodeFact("gpu.uuid", listed[3], device=f"gpu{listed[1]}")
        yield from _error(line.text)

    def end(self) -> Iterable[Seen]:
        return ()

    def _gpu(self, row: re.Match[str], line: Line) -> Iterator[Seen]:
        device, address = f"gpu{row[1]}", bus_id(row[3])
        yield NodeFact("gpu.name", row[2].strip(), device=device)
        if address is not None:
            yield NodeFact("gpu.bus_id", address, device=device)
        after = next(iter(line.following(1)), None)
        cells = row[4].split("|")
        if after is not None and _ROW.search(after.text) is None:
            cells += after.text.split("|")
        yield from _cells(cells, device)
        if any(_ERR_CELL.search(cell) for cell in cells):
            yield Event("gpu.smi_error", {"what": "err", "index": int(row[1]), "bus_id": address})


def _cells(cells: list[str], device: str) -> Iterator[NodeFact]:
    for cell in cells:
        watts, memory, celsius = _WATT.search(cell), _MEMORY.search(cell), _CELSIUS.search(cell)
        if watts is not None:
            yield fact("gpu.power_w", watts[1], device)
            yield fact("gpu.power_limit_w", watts[2], device)
        if celsius is not None:
            yield fact("gpu.temperature_c", celsius[1], device)
            state = _PSTATE.search(cell)
            if state is not None:
                yield NodeFact("gpu.pstate", state[1], device=device)
        if memory is not None:
            yield fact("gpu.memory_used_mib", memory[1], device)
            yield fact("gpu.memory_total_mib", memory[2], device)
        busy = _UTILISATION.search(cell)
        if busy is not None and celsius is None:
            yield fact("gpu.utilization_pct", busy[1], device)


def _driver(match: re.Match[str]) -> Iterator[Seen]:
    yield NodeFact("gpu.driver_version", match[1])
    yield Setting("driver", "nvidia", match[1])
    if match[2]:
        yield NodeFact("gpu.cuda_version", match[2])


def _error(text: str) -> Iterator[Event]:
    for what, pattern in _ERRORS:
        match = pattern.search(text)
        if match is not None:
            address = match[1] if match.groups() and match[1] else None
            yield Event("gpu.smi_error", {"what": what, "bus_id": bus_id(address) if address else None, "index": None})
            return
