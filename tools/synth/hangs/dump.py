"""What the ranks of a played job leave: Flight Recorder dumps of several torch versions, as pickle or JSON."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.synth.hangs.play import Call, Rank
from tools.synth.hangs.program import Layout, Op

START_NS = 1_757_000_000_000_000_000
TIMEOUT_MS = 600_000
RAW = {
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "barrier": "all_reduce_barrier",
}


@dataclass(frozen=True)
class Style:
    """How dumps are written."""

    version: str = "2.10"
    """2.2 (a bare list), 1.4, 2.1, 2.4, 2.9 or 2.10."""
    as_json: bool = False
    """Only versions 2.4 and later can be written as JSON."""
    ring: int = 2000
    """Entries kept."""
    prefix: str = "nccl_trace_rank_"
    starts: bool = True
    """Starts are tracked; without, a begun call is still ``scheduled``."""


def write(layout: Layout, rank: Rank, style: Style, folder: Path) -> Path:
    """Write the dump of one rank; the file."""
    content = dump(layout, rank, style)
    path = folder / f"{style.prefix}{rank.number}{'.json' if style.as_json else ''}"
    if style.as_json:
        path.write_text(json.dumps(_as_json(content)), encoding="utf-8")
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def dump(layout: Layout, rank: Rank, style: Style) -> Any:
    """The dump as torch's Python object."""
    numbers = {group.index: place for place, group in enumerate(layout.groups_of(rank.number))}
    entries = [_entry(layout, rank, style, numbers, place) for place in range(len(rank.calls))][-style.ring :]
    if style.version == "2.2":
        return entries
    content: dict[str, Any] = {
        "version": style.version,
        "pg_config": {
            group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
            for group in layout.groups_of(rank.number)
        },
        "entries": entries,
    }
    if _since(style, "2.4"):
        content["pg_status"] = {str(numbers[g.index]): _status(rank, g.index) for g in layout.groups_of(rank.number)}
    if _since(style, "2.9"):
        content["comm_lib_version" if style.version == "2.10" else "nccl_version"] = "2.27.5"
    return content


def _since(style: Style, version: str) -> bool:
    return _parts(style.version) >= _parts(version)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _status(rank: Rank, group: int) -> dict[str, int]:
    """As torch counts: sends and collectives both set it."""
    calls = [call for call in rank.calls if call.op.group == group]
    last = {
        "last_enqueued_collective": calls,
        "last_started_collective": [c for c in calls if c.state != "scheduled"],
        "last_completed_collective": [c for c in calls if c.state == "completed"],
    }
    return {key: found[-1].seq if found else -1 for key, found in last.items()}


def _entry(layout: Layout, rank: Rank, style: Style, numbers: dict[int, int], place: int) -> dict[str, Any]:
    call = rank.calls[place]
    op, group = call.op, layout.groups[call.op.group]
    p2p = op.peer is not None
    started = call.state != "scheduled" and style.starts
    state = call.state if started or call.state == "completed" else "scheduled"
    entry: dict[str, Any] = {
        "pg_id": numbers[op.group],
        "profiling_name": f"nccl:{_profiling_name(op, group.ranks, rank.number)}",
        "input_sizes": [[op.numel_in]],
        "output_sizes": [[op.numel_out]],
        "state": state,
        "retired": call.state == "completed",
        "frames": [
            {"name": op.name, "filename": "/opt/py/torch/distributed/distributed_c10d.py", "line": 2810},
            {"name": "train_step", "filename": "/job/train.py", "line": op.line},
        ],
    }
    if style.version == "2.2":
        return entry | {"seq_id": call.seq, "time_created_us": (START_NS + call.created_ns) // 1000}
    entry |= {
        "record_id": place,
        "op_id": place + 1,
        "time_created_ns": START_NS + call.created_ns,
        "time_discovered_started_ns": START_NS + call.created_ns + 50_000 if started else None,
        "time_discovered_completed_ns": None if call.completed_ns is None else START_NS + call.completed_ns,
    }
    if style.version == "1.4":
        return entry | {"seq_id": call.seq}
    entry |= {
        "process_group": (group.name, group.desc),
        "collective_seq_id": call.seq if not p2p else _collectives_before(rank, place),
        "p2p_seq_id": call.seq if p2p else 0,
        "is_p2p": p2p,
        "input_dtypes": [op.dtype],
        "output_dtypes": [op.dtype],
    }
    return entry | ({"timeout_ms": TIMEOUT_MS} if _since(style, "2.4") else {})


def _collectives_before(rank: Rank, place: int) -> int:
    ours = rank.calls[place].op.group
    return sum(call.op.group == ours and call.op.peer is None for call in rank.calls[:place])


def _profiling_name(op: Op, ranks: tuple[int, ...], rank: int) -> str:
    if op.peer is None:
        return RAW.get(op.name, op.name)
    arrow = "->" if op.name == "send" else "<-"
    return f"{op.name} {ranks.index(rank)}{arrow}{ranks.index(op.peer)}"


def _as_json(content: Any) -> Any:
    """torch writes the status as text there, and tuples as lists."""
    status = {pg: {key: str(value) for key, value in of.items()} for pg, of in content.get("pg_status", {}).items()}
    return content | ({"pg_status": status} if status else {})


def visible(rank: Rank) -> tuple[tuple[int, int, str, int, int, str, str, int | None], ...]:
    """What a dump of *rank* shows, without times."""
    return tuple(_shown(call) for call in rank.calls)


def _shown(call: Call) -> tuple[int, int, str, int, int, str, str, int | None]:
    op = call.op
    return (op.group, call.seq, op.name, op.numel_in, op.numel_out, op.dtype, call.state, op.peer)
