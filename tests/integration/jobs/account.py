"""A job's own account of its communication, for the tests to compare with: what it calls, or what torch itself logged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

OUT = Path(sys.argv[1])


class Account:
    """Counts what the script does; a step ends with the optimizer's."""

    def __init__(self) -> None:
        self.step = 0
        self.calls: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}

    def called(self, op: str, group: Any, bytes_in: int, bytes_out: int) -> None:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        one = {"op": op, "group": ranks, "bytes_in": bytes_in, "bytes_out": bytes_out, "step": self.step}
        self.calls.append(one)

    def write(self) -> None:
        text = json.dumps({"calls": self.calls, **self.more})
        (OUT / f"rank{dist.get_rank()}.json").write_text(text)


def flight_recorder() -> list[dict[str, Any]]:
    """Torch's own list of collectives (gloo: without sends and receives; a reduce_scatter shows as an all_reduce)."""
    found = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))
    return list(found.get("entries", []))
