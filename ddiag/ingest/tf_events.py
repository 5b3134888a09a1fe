"""What a TensorFlow profile holds, the same from either of its file formats: threads or streams, and spans on them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

NUMBERS = (
    "step_num", "correlation_id", "group_key", "group_size", "instance_key", "id", "step_id", "allocation_bytes",
    "bytes_allocated",
)  # fmt: skip
"""Arguments of events that are read as integers."""
TEXTS = ("device", "memcpy_details", "memset_details", "allocator_name")
"""Arguments of events that are read as text."""
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "line": pl.Int64,
    "name": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    **dict.fromkeys(NUMBERS, pl.Int64),
    **dict.fromkeys(TEXTS, pl.String),
}

_GPU = re.compile(r"^/device:GPU:(\d+)")
_STREAM = re.compile(r"^Stream #(\d+)")
_OTHER_DEVICE = re.compile(r"^(?:/device:(?!GPU:|CPU:)|#Chip|/custom:)")


@dataclass(frozen=True)
class Line:
    """One row of the profile: a thread of a host or a stream of a device."""

    plane: str
    """/host:CPU, /device:GPU:0, …"""
    name: str
    """python, tf_Compute/123, Stream #7(Compute), XLA Ops, …"""
    tid: int

    @property
    def is_host(self) -> bool:
        return self.plane.startswith("/host:")

    @property
    def device(self) -> int | None:
        """Index of the GPU whose line this is."""
        found = _GPU.match(self.plane)
        return int(found.group(1)) if found else None

    @property
    def stream(self) -> int | None:
        """The stream, for the lines of a GPU that show what ran; the others repeat the same time by step, op, scope."""
        found = _STREAM.match(self.name) if self.device is not None else None
        return int(found.group(1)) if found else None

    @property
    def is_other_device(self) -> bool:
        """A device that is neither GPU nor CPU, such as a TPU."""
        return _OTHER_DEVICE.match(self.plane) is not None


@dataclass(frozen=True)
class Profile:
    """One host's profile. ``events`` has the columns of ``SCHEMA``; times are ns from the start of profiling."""

    lines: list[Line]
    events: pl.DataFrame
    count: int
    """Events read, used or not."""
    dropped: int = 0
    base_ns: int | None = None
    """Unix time at which profiling began, where the file says."""
    device_memory_bytes: int | None = None
    device_vendor: str | None = None
    truncated: bool = False
    notes: tuple[str, ...] = ()
