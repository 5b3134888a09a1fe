"""Writes what a simulated rank did as a PyTorch profiler trace, in the layout of the asked era and device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip

from tools.synth.engine import Call, Event, MemoryMark, Rank
from tools.synth.job import Job
from tools.synth.kernels import NCCL_OPS

Json = dict[str, Any]
_BASE_NS = 1_760_000_000_000_000_000
"""Where ``ts`` counts from since torch 2.3; before, it was microseconds since the Unix epoch."""
_ELEMENT_BYTES = {"BFloat16": 2, "Float": 4, "Byte": 1}
_DEVICES = {
    "cuda": {"name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "warpSize": 32},
    "cuda_old": {"name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108, "warpSize": 32},
    "rocm": {"name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "numSms": 304, "warpSize": 64},
}
_HOST_KINDS = ("op", "annotation", "call")
_CATEGORIES = {
    "new": {
        "op": "cpu_op",
        "annotation": "user_annotation",
        "call": "cuda_runtime",
        "kernel": "kernel",
        "collective": "kernel",
        "memcpy": "gpu_memcpy",
    },
    "old": {
        "op": "Operator",
        "annotation": "Operator",
        "call": "Runtime",
        "kernel": "Kernel",
        "collective": "Kernel",
        "memcpy": "Memcpy",
    },
}


class Layout:
    """The differences between eras and devices, in one place."""

    def __init__(self, job: Job, rank: Rank, clock_offset_ns: int) -> None:
        self.job = job
        self.rank = rank
        self.old = job.flavour == "cuda_old"
        self.rocm = job.flavour == "rocm"
        self.pid = rank.main_tid
        self.device = rank.rank % 8
        self._offset_ns = clock_offset_ns
        self._categories = _CATEGORIES["old" if self.old else "new"]

    def ts(self, at_ns: int) -> float | int:
        at_ns += self._offset_ns + 5_000_000_000
        return (_BASE_NS + at_ns) // 1000 if self.old else at_ns / 1000

    def dur(self, start_ns: int, end_ns: int) -> float | int:
        return max(1, (end_ns - start_ns) // 1000) if self.old else (end_ns - start_ns) / 1000

    def span(self, event: Event) -> Json:
        """Return the complete event ('ph': 'X') for *event*."""
        on_device = event.kind in ("kernel", "memcpy") or (event.kind == "collective" and self.job.on_device)
        lane: str | int = event.lane
        if self.old:
            lane = f"stream {event.lane}" if on_device else str(event.lane)
        host_collective = event.kind == "collective" and not on_device
        return {
            "ph": "X",
            "cat": "user_annotation" if host_collective else self._categories[event.kind],
            "name": self._api_name(event.name) if event.kind == "call" else event.name,
            "pid": self.device if on_device else self.pid,
            "tid": lane,
            "ts": self.ts(event.start_ns),
            "dur": self.dur(event.start_ns, event.end_ns),
            "args": self._device_args(event) if on_device else self._host_args(event),
        }

    def _api_name(self, name: str) -> str:
        if not self.rocm:
            return name
        return "hipExtLaunchKernel" if name == "cudaLaunchKernelExC" else name.replace("cuda", "hip", 1)

    def _host_args(self, event: Event) -> Json:
        args: Json = {}
        if event.external_id >= 0:
            args["external id" if self.old else "External id"] = event.external_id
        if event.kind == "call":
            args |= {"cid" if self.rocm else "cbid": 211, "correlation": event.correlation}
        if event.call is not None and self.job.on_device and not self.old:
            args |= self._collective_args(event.call)
        return args | dict(event.args)

    def _device_args(self, event: Event) -> Json:
        args: Json = {"device": self.device, "stream": event.lane, "correlation": event.correlation}
        if self.rocm:
            args["kind"] = "Dispatch Kernel" if event.kind != "memcpy" else "HostToDevice"
            return args
        args["external id" if self.old else "External id"] = event.external_id
        if event.kind == "memcpy":
            size = int(event.args["bytes"])
            seconds = max(event.end_ns - event.start_ns, 1) / 1e9
            args |= {"context": 1, "bytes": size, "memory bandwidth (GB/s)": size / seconds / 1e9}
        else:
            args |= {"queued": 0, "context": 1, "registers per thread": 96, "grid": [132, 1, 1], "block": [128, 1, 1]}
        if event.call is not None and not self.old:
            args |= self._collective_args(event.call)
        return args

    def _collective_args(self, call: Call) -> Json:
        element = _ELEMENT_BYTES[call.dtype]
        return {
            "Collective name": NCCL_OPS[call.op].argument,
            "dtype": call.dtype,
            "In msg nelems": call.bytes_in // element,
            "Out msg nelems": call.bytes_out // element,
            "In split size": "[]",
            "Out split size": "[]",
            "Group size": len(call.group.ranks),
            "Process Group Name": call.group.name,
            "Process Group Description": call.group.desc,
            "Process Group Ranks": str(list(call.group.ranks)),
        }

    def memory(self, mark: MemoryMark) -> Json:
        args: Json = {"Device Type": 1, "Device Id": self.device, "Bytes": mark.bytes}
        if not self.old:
            args |= {
                "Addr": 140_000_000_000_000,
                "Total Allocated": mark.allocated_bytes,
                "Total Reserved": mark.reserved_bytes,
            }
        event = {"ph": "i", "s": "t", "name": "[memory]", "pid": self.pid, "tid": mark.lane, "args": args}
        return event | {"ts": self.ts(mark.at_ns)} | ({} if self.old else {"cat": "cpu_instant_event"})

    def header(self, groups: list[Json]) -> Json:
        """Return everything but the events."""
        header: Json = {"schemaVersion": 1}
        device = _DEVICES.get(self.job.flavour)
        if device is not None:
            properties = device | {"totalGlobalMem": self.job.device_memory_bytes}
            header["deviceProperties"] = [{"id": index} | properties for index in range(8)]
        if not self.old:
            header["distributedInfo"] = {
                "backend": "nccl" if self.job.on_device else "gloo",
                "rank": self.rank.rank,
                "world_size": self.job.ranks,
                "pg_count": len(groups),
                "pg_config": groups,
            } | ({"nccl_version": "2.21.5"} if self.job.on_device else {})
            header |= {"baseTimeNanoseconds": _BASE_NS, "displayTimeUnit": "ms", "profile_memory": 1, "with_stack": 0}
        return header

    def labels(self) -> Iterator[Json]:
        """Names of processes and threads."""
        lanes = [(self.pid, self.rank.main_tid, "python"), (self.pid, self.rank.autograd_tid, "pt_autograd_0")]
        for pid, tid, name in lanes:
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
        for pid, label in ((self.pid, "CPU"), (self.device, f"GPU {self.device}")):
            yield {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": 0, "args": {"labels": label}}


def write_trace(job: Job, rank: Rank, folder: Path, *, clock_offset_ns: int) -> Path:
    """Write the recorded window of *rank* and return the file."""
    layout = Layout(job, rank, clock_offset_ns)
    start_ns, end_ns = _window(job, rank)
    inside = _recorded(rank.events, start_ns, end_ns)
    if job.on_device:
        inside.append(_final_wait(rank, inside, end_ns))
    known_ids = {e.external_id for e in inside if e.kind in ("op", "annotation")} | {-1}
    records = [layout.span(e) for e in inside if e.kind != "call" or e.external_id in known_ids]
    records += list(_arrows(layout, inside))
    if job.on_device:
        records += [layout.memory(mark) for mark in rank.memory if start_ns <= mark.at_ns <= end_ns]
    records.sort(key=lambda record: record["ts"])
    body = layout.header(_groups(rank)) | {"traceEvents": [*layout.labels(), *records]}
    path = folder / f"rank{rank.rank}.pt.trace.json.gz"
    path.write_bytes(igzip.compress(msgspec.json.encode(body), compresslevel=2, mtime=0))
    return path


def _window(job: Job, rank: Rank) -> tuple[int, int]:
    first = job.warmup_steps + rank.rank * job.window_shift_steps
    steps = {e.name: e for e in rank.events if e.name.startswith("ProfilerStep#")}
    return steps[f"ProfilerStep#{first}"].start_ns, steps[f"ProfilerStep#{first + job.steps - 1}"].end_ns


def _recorded(events: list[Event], start_ns: int, end_ns: int) -> list[Event]:
    """What the profiler sees: host events inside its window, and all device work that ran from its start on or was
    launched before its end, because stopping waits for the device.
    """
    host = [e for e in events if e.kind in _HOST_KINDS and start_ns <= e.start_ns and e.end_ns <= end_ns]
    last = max((e.correlation for e in host if e.kind == "call"), default=-1)
    device = [e for e in events if e.kind not in _HOST_KINDS and e.start_ns >= start_ns]
    on_host = [e for e in device if e.correlation < 0 and e.end_ns <= end_ns]
    return host + on_host + [e for e in device if 0 <= e.correlation <= last]


def _final_wait(rank: Rank, recorded: list[Event], end_ns: int) -> Event:
    """The profiler's own wait for the device."""
    drained = max((e.end_ns for e in recorded if e.kind not in _HOST_KINDS), default=0)
    number = max(e.correlation for e in rank.events) + 1
    return Event("call", "cudaDeviceSynchronize", rank.main_tid, end_ns, max(end_ns + 5_000, drained), number)


def _arrows(layout: Layout, events: list[Event]) -> Iterator[Json]:
    """Flow events from each runtime call to what it launched."""
    category, name = ("async", "launch") if layout.old else ("ac2g", "ac2g")
    calls = {e.correlation: e for e in events if e.kind == "call"}
    for event in events:
        call = calls.get(event.correlation)
        if call is None or event.kind not in ("kernel", "memcpy", "collective"):
            continue
        flow = {"id": event.correlation, "cat": category, "name": name}
        yield flow | {"ph": "s", "pid": layout.pid, "tid": call.lane, "ts": layout.ts(call.start_ns)}
        finish = {"ph": "f", "bp": "e", "pid": layout.device, "tid": event.lane, "ts": layout.ts(event.start_ns)}
        yield flow | finish


def _groups(rank: Rank) -> list[Json]:
    groups = {e.call.group for e in rank.events if e.call is not None}
    return [
        {
            "pg_name": group.name,
            "pg_desc": group.desc,
            "backend_config": "cuda:nccl" if rank.on_device else "cpu:gloo",
            "pg_size": len(group.ranks),
            "ranks": list(group.ranks),
        }
        for group in sorted(groups, key=lambda group: group.name)
    ]
