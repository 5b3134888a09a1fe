"""Out of memory on the device, in the words of every torch version, and what the allocator says besides.

The texts are those of ``CUDACachingAllocator.cpp``: one parenthesis up to torch 2.0, sentences from 2.1 on (which part
is there depends on version, driver and limits, so each is searched by itself).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ddiag.ingest.logs.line import Line
from ddiag.ingest.logs.named_rank import rank_of
from ddiag.ingest.logs.sizes import AMOUNT, bytes_of
from ddiag.model.incident import Event, Seen, Value

_OOM = re.compile(
    r"\b(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory|OutOfMemoryError: Allocation on device|Tried to allocate"
)
_TRIED = re.compile(rf"Tried to allocate {AMOUNT}")
_ABSURD = re.compile(r"Tried to allocate (?:more than 1EB|-\d)")
_OLD = re.compile(
    rf"\(GPU (?P<gpu>\d*); {AMOUNT} total capacity; {AMOUNT} already allocated; {AMOUNT} free; "
    rf"(?:{AMOUNT} allowed; )?{AMOUNT} (?:reserved in total by PyTorch|cached)"
)
_NEW = re.compile(rf"GPU\s*(?P<gpu>\d*)\s+has a total capac(?:i)?ty of {AMOUNT} of which {AMOUNT} is free")
_OTHER = re.compile(rf"Process (?P<pid>\d+) has {AMOUNT} memory in use")
_OWN = re.compile(rf"this process has {AMOUNT} memory in use")
_ALLOWED = re.compile(rf"{AMOUNT} allowed;")
_ALLOCATED = re.compile(rf"{AMOUNT} is allocated by PyTorch")
_PRIVATE = re.compile(rf"with {AMOUNT} allocated in private pools")
_UNALLOCATED = re.compile(rf"{AMOUNT} is reserved by PyTorch but unallocated")
_HANDLED = re.compile(r"\b(?:skip|retry|retrying|reduc|recover|ignor|decreas|halv)\w*", re.IGNORECASE)
_RAISED = re.compile(r"(?:OutOfMemoryError|RuntimeError|Exception|Error)\b.{0,60}out of memory")
_DRIVER = (
    (re.compile(r"CUDA error: out of memory|cudaErrorMemoryAllocation|HIP error: out of memory"), "cuda_error"),
    (re.compile(r"CUBLAS_STATUS_ALLOC_FAILED"), "cublas"),
    (re.compile(r"CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), "cudnn"),
)
_CONFLICTS = (
    (re.compile(r"Tensors allocated with expandable_segments:True cannot be shared between processes"), "ipc"),
    (re.compile(r"pidfd_(?:getfd|open) syscall"), "pidfd"),
    (re.compile(r"disabl\w+ the tensor[- ]register.{0,40}expandable_segments|expandable_segments.{0,80}tensor[- "
        r"]?register"), "hook"),
    (re.compile(r"expandable_segments(?::True)? (?:is )?not supported on this platform"), "driver"),
)  # fmt: skip
_SUMMARY = re.compile(r"PyTorch CUDA memory summary, device ID (\d+)")
_RETRIES = re.compile(r"num_alloc_retries['\"]?\s*[:=]\s*(\d+)")
_SUMMARY_LINES = 14
_SUMMARY_COUNTS = re.compile(r"CUDA OOMs: (\d+)\s*\|\s*cudaMalloc retries: (\d+)")
_SUMMARY_ROW = re.compile(rf"\|\s*(Allocated memory|GPU reserved memory)\s*\|\s*{AMOUNT}")
_WRAPPED_LINES = 8
_PIN_NEAR_LINES = 25
"""A traceback names ``pin_memory`` at most so many lines before its error."""


class CudaMemory:
    """Device memory in logs."""

    needles: tuple[str, ...] = (
        "Tried to allocate", "out of memory", "ErrorMemoryAllocation", "ALLOC_FAILED", "ALLOCATION_FAILED",
        "expandable_segments", "num_alloc_retries", "pidfd_", "PyTorch CUDA memory summary", "pin_memory",
    )  # fmt: skip

    def __init__(self) -> None:
        self._pinning_at = -_PIN_NEAR_LINES
        self._done_to = 0
        """Lines up to this one belong to an OOM text that was wrapped."""

    def line(self, line: Line) -> Iterator[Seen]:
        text = line.text
        if line.number <= self._done_to:
            return
        if "pin_memory" in text:
            self._pinning_at = line.number
        if _OOM.search(text) and (event := self._oom(line)) is not None:
            yield event
        else:
            yield from self._driver(line)
        yield from (Event("cuda.expandable_conflict", {"what": what}) for how, what in _CONFLICTS if how.search(text))
        if found := _RETRIES.search(text):
            yield Event("cuda.memory_summary", {"retries": int(found[1])}, rank_of(line))
        if found := _SUMMARY.search(text):
            yield from _summary(int(found[1]), line)

    def end(self) -> Iterator[Seen]:
        return iter(())

    def _oom(self, line: Line) -> Event | None:
        """The event of an OOM text, joined with the next lines where a terminal wrapped it."""
        text = line.text
        if not _TRIED.search(text) and not _ABSURD.search(text) and "out of memory" not in text:
            return None
        fields = oom_fields(text)
        if "allocated_bytes" not in fields and "corrupt_size" not in fields:
            for later in line.following(_WRAPPED_LINES):
                if _OOM.search(later.text) and "tried_bytes" in fields:
                    break
                text = _joined(text, later.text)
                fields = oom_fields(text)
                if "unallocated_bytes" in fields:
                    self._done_to = later.number
                    break
            else:
                fields = oom_fields(line.text)
        if "tried_bytes" not in fields and "corrupt_size" not in fields:
            return None
        return Event("cuda.oom", fields, rank_of(line))

    def _driver(self, line: Line) -> Iterator[Event]:
        for pattern, what in _DRIVER:
            if found := pattern.search(line.text):
                pinned = what == "cuda_error" and line.number - self._pinning_at < _PIN_NEAR_LINES
                yield Event("cuda.oom_driver", {"what": "pinned" if pinned else what, "error": found[0]})
                return


def oom_fields(text: str) -> dict[str, Value]:
    """What an OOM text says, in bytes; a part that is not in it is absent."""
    fields: dict[str, Any] = _old_fields(text) or _new_fields(text)
    if tried := _TRIED.search(text):
        fields["tried_bytes"] = bytes_of(tried[1], tried[2])
    if _ABSURD.search(text):
        fields["corrupt_size"] = True
    fields["expandable"] = "expandable_segments:True" in text
    fields["handled"] = bool(_HANDLED.search(text)) and not _RAISED.search(text)
    return fields


def _old_fields(text: str) -> dict[str, Any]:
    found = _OLD.search(text)
    if found is None:
        return {}
    gpu, *amounts = found.groups()
    sizes = [
        bytes_of(number, unit or "") if number else None
        for number, unit in zip(amounts[::2], amounts[1::2], strict=True)
    ]
    capacity, allocated, free, allowed, reserved = sizes
    fields = {
        "device": int(gpu) if gpu else None, "capacity_bytes": capacity, "allocated_bytes": allocated,
        "free_bytes": free, "unallocated_bytes": max((reserved or 0) - (allocated or 0), 0),
    }  # fmt: skip
    return fields | ({"allowed_bytes": allowed} if allowed is not None else {})


def _new_fields(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if found := _NEW.search(text):
        fields["device"] = int(found["gpu"]) if found["gpu"] else None
        fields["capacity_bytes"], fields["free_bytes"] = bytes_of(found[2], found[3]), bytes_of(found[4], found[5])
    for name, pattern in (
        ("process_bytes", _OWN), ("allowed_bytes", _ALLOWED), ("allocated_bytes", _ALLOCATED),
        ("private_pool_bytes", _PRIVATE), ("unallocated_bytes", _UNALLOCATED),
    ):  # fmt: skip
        if one := pattern.search(text):
            fields[name] = bytes_of(one[1], one[2])
    others = [{"pid": int(one["pid"]), "bytes": bytes_of(one[2], one[3])} for one in _OTHER.finditer(text)]
    return fields | _without_itself(fields, others)


def _without_itself(fields: dict[str, Any], processes: list[dict[str, int]]) -> dict[str, Any]:
    """Who else is on the device: in a container the process does not know its own pid and lists itself by number."""
    if not processes:
        return {}
    own = fields.get("allocated_bytes", 0) + fields.get("unallocated_bytes", 0)
    if "process_bytes" in fields or not own:
        return {"others": processes}
    itself = min(processes, key=lambda one: (one["bytes"] < 0.97 * own, abs(one["bytes"] - own)))
    if itself["bytes"] < 0.97 * own:
        return {"others": processes}
    return {"process_bytes": itself["bytes"], "others": [one for one in processes if one is not itself]}


def _joined(text: str, later: str) -> str:
    """A wrap may fall inside a number or a word: glued when that reads, with a blank otherwise."""
    glued = text + later.lstrip()
    return glued if len(oom_fields(glued)) > len(oom_fields(f"{text} {later.lstrip()}")) else f"{text} {later.lstrip()}"


def _summary(device: int, line: Line) -> Iterator[Event]:
    fields: dict[str, Value] = {"device": device}
    for later in line.own(_SUMMARY_LINES):
        if counts := _SUMMARY_COUNTS.search(later.text):
            fields |= {"ooms": int(counts[1]), "retries": int(counts[2])}
        elif row := _SUMMARY_ROW.search(later.text):
            name = "allocated_bytes" if row[1].startswith("Alloc") else "reserved_bytes"
            fields[name] = bytes_of(row[2], row[3])
    if len(fields) > 1:
        yield Event("cuda.memory_summary", fields)
