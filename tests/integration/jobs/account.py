"""A job's own account of its communication, for the tests to compare with: what it calls, or what torch logged."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

OUT = Path(sys.argv[1])


class Account:
    """Counts what the script does; a step ends with the optimizer's."""

    def __init__(self) -> None:
        self.step = 0
        self.ends: list[int] = []
        self.calls: list[dict[str, Any]] = []
        self.peers: list[int] = []
        """Of each call the global rank it was sent to, came from, or has as its root; -1: none."""
        self.monitored: list[int] = []
        """Which calls are monitored barriers."""
        self.sequence: list[int] = []
        """Of each call torch's own number in its group, where torch logged them."""
        self.more: dict[str, Any] = {}

    def called(
        self, op: str, group: Any, bytes_in: int, bytes_out: int, *, peer: int = -1, monitored: bool = False
    ) -> None:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        one = {"op": op, "group": ranks, "bytes_in": bytes_in, "bytes_out": bytes_out, "step": self.step}
        if monitored:
            self.monitored.append(len(self.calls))
        self.calls.append(one)
        self.peers.append(peer)

    def step_ended(self) -> None:
        self.step += 1
        self.ends.append(time.time_ns())

    def logged(self) -> None:
        """Take torch's own log for the account."""
        entries = flight_recorder()
        self.calls = [self._call(one) for one in entries]
        self.sequence = [one["collective_seq_id"] for one in entries]

    def _call(self, entry: dict[str, Any]) -> dict[str, Any]:
        name = entry["process_group"][0]
        groups = dist.distributed_c10d._world.pg_names
        (group,) = [one for one, its in groups.items() if its == name]
        width = getattr(torch, _TYPES[entry["input_dtypes"][0]]).itemsize if entry["input_dtypes"] else 0
        step = sum(end < entry["time_created_ns"] for end in self.ends)
        return {
            "op": entry["profiling_name"].removeprefix("gloo:"),
            "group": dist.get_process_group_ranks(group),
            "bytes_in": width * sum(math.prod(one) for one in entry["input_sizes"]),
            "bytes_out": width * sum(math.prod(one) for one in entry["output_sizes"]),
            "step": step,
        }

    def write(self) -> None:
        own = {name: getattr(self, name) for name in ("calls", "peers", "monitored", "sequence")}
        text = json.dumps({**own, **self.more})
        (OUT / f"rank{dist.get_rank()}.json").write_text(text)


_TYPES = {
    "Float": "float32",
    "Double": "float64",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Byte": "uint8",
    "Half": "half",
}


def flight_recorder() -> list[dict[str, Any]]:
    """Torch's own list of collectives (gloo: without sends and receives; a reduce_scatter shows as an all_reduce)."""
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
        return []
    found = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))
    return list(found.get("entries", []))
