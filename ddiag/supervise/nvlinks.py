"""NVLinks of the devices: which are up, of what generation, and the errors they count.

A hundred calls for a node of eight devices: so they are looked at seldom, one device a time, and told when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

EVERY = 30
"""Samples between two looks at one device."""
_MOST = 18
_COUNTERS = (
    ("replay_errors", "NVML_NVLINK_ERROR_DL_REPLAY"),
    ("recovery_errors", "NVML_NVLINK_ERROR_DL_RECOVERY"),
    ("crc_data_errors", "NVML_NVLINK_ERROR_DL_CRC_DATA"),
)
_FAILED_RECOVERIES = 214
"""NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, of NVLink 5, which lacks the counters above."""

Link = dict[str, int]
"""``link`` (its number), ``active``, ``version``, and the counters that it has (cumulative)."""


class NvLinks:
    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        self._told: dict[int, list[Link]] = {}
        self._without: set[int] = set()

    def changes(self, reads: int) -> list[dict[str, Any]]:
        """Events of the devices whose turn it is at the *reads*-th sample (all at the first)."""
        found = []
        for index, handle in enumerate(self._handles):
            if index in self._without or (reads > 1 and reads % EVERY != index % EVERY):
                continue
            links = self._links(handle)
            if not links:
                self._without.add(index)
            elif links != self._told.get(index):
                self._told[index] = links
                found.append({"kind": "nvlinks", "device": index, "links": links})
        return found

    def _links(self, handle: Any) -> list[Link]:
        nvml = self._nvml
        found = []
        for number in range(_MOST):
            try:
                link = {"link": number, "active": int(nvml.nvmlDeviceGetNvLinkState(handle, number))}
            except (AttributeError, nvml.NVMLError):
                break
            if link["active"]:
                self._describe(handle, link)
            found.append(link)
        return found

    def _describe(self, handle: Any, link: Link) -> None:
        nvml, number = self._nvml, link["link"]
        readers: dict[str, Callable[[], int]] = {"version": lambda: nvml.nvmlDeviceGetNvLinkVersion(handle, number)}
        readers |= {name: partial(self._counter, handle, number, counter) for name, counter in _COUNTERS}
        readers["failed_recovery_errors"] = partial(self._field, handle, number)
        for name, read in readers.items():
            try:
                link[name] = int(read())
            except (AttributeError, nvml.NVMLError):
                continue

    def _counter(self, handle: Any, number: int, counter: str) -> int:
        return int(self._nvml.nvmlDeviceGetNvLinkErrorCounter(handle, number, getattr(self._nvml, counter)))

    def _field(self, handle: Any, number: int) -> int:
        (value,) = self._nvml.nvmlDeviceGetFieldValues(handle, [(_FAILED_RECOVERIES, number)])
        if value.nvmlReturn != self._nvml.NVML_SUCCESS:
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
        return int(value.value.ullVal)
