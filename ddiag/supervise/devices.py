"""NVIDIA devices through NVML (module ``pynvml`` of nvidia-ml-py), as in a line of ``nodes/<host>.samples``.

Loaded only here, and only in the sampler's process: a driver that hangs or crashes takes nobody else along. What a
device or its driver does not support is asked for once and then left out. Everything is only read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ddiag.supervise.nvlinks import NvLinks

_ALL_LINKS = 0xFFFFFFFF
_KIB = 1024
_MILLI = 1e-3
_PID_EVERY = 10
"""Samples between two looks at which processes use a device."""

Read = Callable[[Any], Any]
"""A device's handle -> a value of its entry."""


class NoDevicesError(Exception):
    """There is no NVML here, or it has no device; the message says which."""


class Devices:
    """Every device NVML shows. Raises :class:`NoDevicesError`."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NoDevicesError("nvidia-ml-py is not installed") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except pynvml.NVMLError as error:
            raise NoDevicesError(f"no NVML: {error}") from error
        if not self._handles:
            raise NoDevicesError("NVML shows no device")
        self._probes = [_probes(pynvml) for _ in self._handles]
        self._troubles: dict[int, str] = {}
        self._processes: dict[int, list[int]] = {}
        self._xids = self._watch_xids()
        self._links = NvLinks(pynvml, self._handles)
        self._reads = 0

    def facts(self) -> list[dict[str, Any]]:
        """What does not change: name, address, limits, the best link it could have."""
        return [self._ask(handle, _fact_readers(self._nvml)) for handle in self._handles]

    def software(self) -> dict[str, Any]:
        nvml = self._nvml
        readers: dict[str, Read] = {
            "driver": lambda _: _text(nvml.nvmlSystemGetDriverVersion()),
            "nvml": lambda _: _text(nvml.nvmlSystemGetNVMLVersion()),
            "cuda_driver": lambda _: nvml.nvmlSystemGetCudaDriverVersion(),
        }
        return self._ask(None, readers)

    def read(self) -> list[dict[str, Any]]:
        """One entry per device."""
        self._reads += 1
        return [self._read(index) for index in range(len(self._handles))]

    def _read(self, index: int) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        probes, handle = self._probes[index], self._handles[index]
        for name, read in list(probes.items()):
            if name == "pcie_kbps" and self._reads % len(self._handles) != index:
                continue  # blocks for 40 ms: one device a sample
            try:
                value = read(handle)
            except (AttributeError, self._nvml.NVMLError) as error:
                if _unsupported(self._nvml, error):
                    del probes[name]
                else:
                    self._troubles[index] = f"{name}: {error}"
                continue
            if isinstance(value, dict):
                entry.update(value)
            elif value is not None:
                entry[name] = value
        return entry

    def events(self) -> list[dict[str, Any]]:
        """XIDs since the last call, trouble with reading a device, changes of who uses it and of its NVLinks."""
        found = [{"kind": "device_trouble", "device": index, "what": what} for index, what in self._troubles.items()]
        self._troubles.clear()
        found += self._new_xids()
        if self._reads % _PID_EVERY == 1:
            found += self._new_processes()
        return found + self._links.changes(self._reads)

    def _watch_xids(self) -> Any:
        """An event set that collects XIDs, or None where they cannot be watched."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            return None
        return events

    def _new_xids(self) -> list[dict[str, Any]]:
        nvml = self._nvml
        found: list[dict[str, Any]] = []
        while self._xids is not None and len(found) < 100:
            try:
                event = nvml.nvmlEventSetWait_v2(self._xids, 0)
            except nvml.NVMLError as error:
                if not isinstance(error, nvml.NVMLError_Timeout):
                    self._xids = None
                break
            found.append({"kind": "xid", "device": self._index(event.device), "xid": int(event.eventData)})
        return found

    def _index(self, handle: Any) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetIndex(handle))
        except self._nvml.NVMLError:
            return None

    def _new_processes(self) -> list[dict[str, Any]]:
        found = []
        for index, handle in enumerate(self._handles):
            try:
                pids = sorted(one.pid for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
            except self._nvml.NVMLError:
                continue
            if pids != self._processes.get(index, []):
                self._processes[index] = pids
                found.append({"kind": "device_processes", "device": index, "pids": pids})
        return found

    def _ask(self, handle: Any, readers: dict[str, Read]) -> dict[str, Any]:
        entry = {}
        for name, read in readers.items():
            try:
                entry[name] = read(handle)
            except (AttributeError, self._nvml.NVMLError):
                continue
        return entry


def _unsupported(nvml: Any, error: Any) -> bool:
    """It will not work later either; an AttributeError is a call that this nvidia-ml-py does not know."""
    never = ("NotSupported", "FunctionNotFound", "NoPermission", "InvalidArgument", "ArgumentVersionMismatch")
    known = tuple(getattr(nvml, f"NVMLError_{name}") for name in never if hasattr(nvml, f"NVMLError_{name}"))
    return isinstance(error, (AttributeError, *known))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _fact_readers(nvml: Any) -> dict[str, Read]:
    return {
        "name": lambda h: _text(nvml.nvmlDeviceGetName(h)),
        "uuid": lambda h: _text(nvml.nvmlDeviceGetUUID(h)),
        "bus_id": lambda h: _text(nvml.nvmlDeviceGetPciInfo(h).busId),
        "memory_bytes": lambda h: int(nvml.nvmlDeviceGetMemoryInfo(h).total),
        "numa_node": lambda h: int(nvml.nvmlDeviceGetNumaNodeId(h)),
        "cpus_near": lambda h: _listed(nvml.nvmlDeviceGetCpuAffinity(h, ((os.cpu_count() or 1) + 63) // 64)),
        "max_pcie_gen": lambda h: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(h)),
        "max_pcie_width": lambda h: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(h)),
        "max_sm_mhz": lambda h: int(nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM)),
        "power_limit_w": lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) * _MILLI,
        "ecc": lambda h: bool(nvml.nvmlDeviceGetEccMode(h)[0]),
    }


def _probes(nvml: Any) -> dict[str, Read]:
    """What is read of a device every time; keys as in ``DEVICE_FIELDS``, or a dict of several of them."""
    return {
        "utilization": lambda h: _utilization(nvml.nvmlDeviceGetUtilizationRates(h)),
        "sm_mhz": lambda h: int(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
        "mem_mhz": lambda h: int(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)),
        "reasons": lambda h: _reasons(nvml, h),
        "power_w": lambda h: round(nvml.nvmlDeviceGetPowerUsage(h) * _MILLI, 1),
        "energy_mj": lambda h: int(nvml.nvmlDeviceGetTotalEnergyConsumption(h)),
        "temp_c": lambda h: int(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
        "used_bytes": lambda h: int(nvml.nvmlDeviceGetMemoryInfo(h).used),
        "pcie_gen": lambda h: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(h)),
        "pcie_width": lambda h: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(h)),
        "pcie_replays": lambda h: int(nvml.nvmlDeviceGetPcieReplayCounter(h)),
        "pcie_bytes": lambda h: _fields(nvml, h, ("pcie_tx_bytes", 197, 0, 1), ("pcie_rx_bytes", 198, 0, 1)),
        "pcie_kbps": lambda h: _pcie_rates(nvml, h),
        "nvlink": lambda h: _fields(
            nvml, h, ("nvlink_tx_bytes", 138, _ALL_LINKS, _KIB), ("nvlink_rx_bytes", 139, _ALL_LINKS, _KIB)
        ),
        "ecc_corrected": lambda h: _ecc(nvml, h, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": lambda h: _ecc(nvml, h, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "remapped_rows": lambda h: [int(value) for value in nvml.nvmlDeviceGetRemappedRows(h)],
        "throttled_us": lambda h: _throttled(nvml, h),
    }


def _listed(words: Any) -> str:
    """``0-31,64-95``, of a mask in words of 64 bits."""
    cpus = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _utilization(rates: Any) -> dict[str, int]:
    return {"util": int(rates.gpu), "mem_util": int(rates.memory)}


def _reasons(nvml: Any, handle: Any) -> int:
    """The newer name of the call, or the older one of older drivers."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (AttributeError, nvml.NVMLError_FunctionNotFound):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _fields(nvml: Any, handle: Any, *wanted: tuple[str, int, int, int]) -> dict[str, int]:
    """Cumulative counters: (key, NVML_FI_DEV_… id, scope, bytes per unit); raises NotSupported when there is none."""
    values = nvml.nvmlDeviceGetFieldValues(handle, [(number, scope) for _, number, scope, _ in wanted])
    found = {}
    for value, (key, _, _, unit) in zip(values, wanted, strict=True):
        if value.nvmlReturn == nvml.NVML_SUCCESS:
            found[key] = _union(nvml, value) * unit
    if not found:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return found


def _union(nvml: Any, value: Any) -> int:
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return int(getattr(value.value, members.get(value.valueType, "ullVal")))


def _pcie_rates(nvml: Any, handle: Any) -> dict[str, int] | None:
    """Only where the cumulative counters are missing, since each of the two calls measures for 20 ms."""
    try:
        _fields(nvml, handle, ("pcie_tx_bytes", 197, 0, 1))
    except nvml.NVMLError:
        return {
            "pcie_tx_kbps": int(nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES)),
            "pcie_rx_kbps": int(nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES)),
        }
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


def _ecc(nvml: Any, handle: Any, kind: int) -> int:
    return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))


def _throttled(nvml: Any, handle: Any) -> list[int]:
    policies = (
        *(nvml.NVML_PERF_POLICY_POWER, nvml.NVML_PERF_POLICY_THERMAL),
        *(nvml.NVML_PERF_POLICY_SYNC_BOOST, nvml.NVML_PERF_POLICY_BOARD_LIMIT),
    )
    return [int(nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime * _MILLI) for policy in policies]
