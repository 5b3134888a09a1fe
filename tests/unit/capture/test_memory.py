"""Memory as the recorder reads it, with a caching allocator that is made up."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from ddiag.capture.hooks.memory import _Device
from ddiag.capture.recorder import Recorder
from tests.unit.capture.reading import steps_of


def _torch(*, initialised: bool = True) -> Any:
    stats = {
        "allocated_bytes": {"all": {"current": 100, "peak": 900}},
        "reserved_bytes": {"all": {"current": 1000, "peak": 1200}},
        "inactive_split_bytes": {"all": {"current": 70}},
        "num_alloc_retries": 5,
        "num_ooms": 1,
    }
    pinned = {"allocated_bytes": {"current": 64, "peak": 128}}
    cuda = SimpleNamespace(is_initialized=lambda: initialised, current_device=lambda: 3)
    inner = SimpleNamespace(_cuda_memoryStats=lambda _device: stats, _cuda_hostMemoryStats=lambda: pinned)
    return SimpleNamespace(cuda=cuda, _C=inner, stats=stats)


def _facts(active: Recorder) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in active.files.facts.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "device_memory"]


def test_a_step_keeps_the_highest_sample_and_the_allocators_own_peaks(active: Recorder) -> None:
    torch = _torch()
    device = _Device(torch, active.facts)
    active.sample_memory("device", device.at_peak, device.at_end)
    torch.stats["allocated_bytes"]["all"]["current"] = 800
    active.sample_peaks()
    torch.stats["allocated_bytes"]["all"]["current"] = 100
    active.engine_step()
    torch.stats["num_alloc_retries"] = 7
    active.engine_step()
    first, second = steps_of(active.files)
    assert (first.device_allocated_bytes, second.device_allocated_bytes) == (800, 100)
    assert (first.device_reserved_bytes, first.device_peak_allocated_bytes) == (1000, 900)
    assert first.device_peak_reserved_bytes == 1200
    # Retries before the recording are not this step's.
    assert (first.alloc_retries, second.alloc_retries) == (0, 2)


def test_fragmentation_and_pinned_memory_are_told_now_and_then(active: Recorder) -> None:
    device = _Device(_torch(), active.facts)
    for _ in range(3):
        device.at_end(active.totals)
    (fact,) = _facts(active)
    assert (fact["device"], fact["inactive_split_bytes"], fact["ooms"]) == (3, 70, 1)
    assert (fact["pinned_bytes"], fact["pinned_peak_bytes"]) == (64, 128)


def test_an_older_torch_tells_no_pinned_memory(active: Recorder) -> None:
    torch = _torch()
    del torch._C._cuda_hostMemoryStats
    _Device(torch, active.facts).at_end(active.totals)
    assert _facts(active)[0]["pinned_bytes"] is None


def test_a_process_without_a_device_stays_unknown(active: Recorder) -> None:
    device = _Device(_torch(initialised=False), active.facts)
    device.at_peak(active.totals)
    device.at_end(active.totals)
    assert active.totals.device_allocated_bytes == -1
    assert _facts(active) == []
