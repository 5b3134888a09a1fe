"""Tables of a recording that are not made of records: ranks and their ends, captures, groups, samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import polars as pl

from ddiag.ingest.clues import to_tables
from ddiag.ingest.node_samples import NodeSamples, counters
from ddiag.ingest.recorded_choice import Job
from ddiag.ingest.recorded_process import Placed
from ddiag.ingest.recorded_settings import settings_and_facts
from ddiag.ingest.sampled_devices import device_rows, of_rank, told
from ddiag.model.tables import TABLES

_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python|^<")


def side_tables(job: Job, placed: Sequence[Placed], nodes: Sequence[NodeSamples]) -> dict[str, pl.DataFrame]:
    """Tables by name; they may be empty."""
    host = {pid: node.host for node in nodes for pid in node.rank_of}
    one_host = job.manifest.host if job.manifest is not None and len(nodes) < 2 else None
    hosts = [host.get(one.process.pid) or one.process.facts.host or one_host for one in placed]
    rows: dict[str, list[dict[str, object]]] = {
        "ranks": [_rank_row(one, its_host, nodes) for one, its_host in zip(placed, hosts, strict=True)],
        "exits": [_exit_row(one, its_host, nodes) for one, its_host in zip(placed, hosts, strict=True)],
        "captures": [_capture_row(one) for one in placed],
        "groups": _group_rows(placed),
        "devices": [row for node in nodes for row in device_rows(node)],
        "pinned_memory": [row for one in placed for row in _pinned_rows(one)],
        "ddp_unused": [
            {"rank": one.process.rank, "module": module, "looks": looks, "unused_bytes": unused}
            for one in placed
            for module, looks, unused in one.process.facts.unused
        ],
    }
    found = {name: pl.DataFrame(part, schema=TABLES[name].schema, strict=False) for name, part in rows.items()}
    sampled = (one for node in nodes for one in told(node))
    said = to_tables(chain(settings_and_facts(job, placed, hosts), sampled))  # of the same, what was seen last counts
    return {**found, "counters": counters(nodes), **said}


def _rank_row(one: Placed, host: str | None, nodes: Sequence[NodeSamples]) -> dict[str, object]:
    process = one.process
    steps = one.tables.get("step_summaries")
    on_device = steps is not None and steps["device_reserved_bytes"].is_not_null().any()
    rocm = "rocm" in process.facts.torch
    backends = process.facts.backends
    return {
        **(of_rank(process.pid, host, nodes) if on_device else {}),
        "rank": process.rank,
        "source": process.sources.label,
        "host": host,
        "device_kind": ("rocm" if rocm else "cuda") if on_device else "cpu",
        "backend": next(iter(backends.values()), None),
        "world_size": process.world_size,
        "main_tid": process.main_tid,
        "rank_known": True,
    }


def _exit_row(one: Placed, host: str | None, nodes: Sequence[NodeSamples]) -> dict[str, object]:
    process = one.process
    seen = [node.exits[process.pid] for node in nodes if process.pid in node.exits and host in (None, node.host)]
    end = seen[-1] if seen else None
    exception = process.facts.exception
    return {
        "rank": process.rank,
        "host": host,
        "pid": process.pid,
        "end_ns": end.at_ns if end is not None else None,
        "exit_code": end.code if end is not None else None,
        "signal": end.signal if end is not None else None,
        "closed": process.closed,
        "last_ns": process.span[1] + one.offset_ns,
        "exception": exception.get("type"),
        "message": exception.get("message"),
        "where": exception.get("where") or _where(process.fatal),
    }


def _where(frames: Sequence[str]) -> str | None:
    """The innermost frame that is no library's."""
    return next((frame for frame in frames if not _LIBRARY.search(frame)), frames[0] if frames else None)


def _pinned_rows(one: Placed) -> Iterator[dict[str, object]]:
    steps = one.process.steps
    ends = np.sort(steps.records["end_ns"]) if steps is not None else np.empty(0, dtype=np.int64)
    for look in one.process.facts.device_memory:
        step = int(np.searchsorted(ends, look["mono_ns"], side="right")) - 1
        yield {
            **look,
            "rank": one.process.rank,
            "ts_ns": look["mono_ns"] + one.offset_ns,
            "step": step if step >= 0 else None,
        }


def _capture_row(one: Placed) -> dict[str, object]:
    process = one.process
    return {
        "rank": process.rank,
        "capture": 0,
        "source": process.sources.label,
        "start_ns": process.whole_from_ns + one.offset_ns,
        "end_ns": process.span[1] + one.offset_ns,
        "with_stack": False,
        "profile_memory": False,
        "truncated": False,
        "framework": "pytorch",
        "versions": f"torch {process.facts.torch}" if process.facts.torch else None,
    }


def _group_rows(placed: Sequence[Placed]) -> list[dict[str, object]]:
    """Every group once; one name may stand for different ranks on different processes."""
    found: dict[tuple[str, tuple[int, ...]], dict[str, object]] = {}
    for one in placed:
        for group in one.process.facts.groups.values():
            row: dict[str, object] = {"group": group.name, "desc": group.desc, "size": group.size}
            row["ranks"] = list(group.ranks) or None
            found.setdefault((group.name, group.ranks), row)
    return list(found.values())
