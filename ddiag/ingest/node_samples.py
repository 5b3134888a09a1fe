"""What the supervisor sampled of hosts and devices, as counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ddiag.errors import InputError
from ddiag.ingest.recorded_facts import decode
from ddiag.model.tables import TABLES
from ddiag.schema.folder import check_version
from ddiag.schema.samples import HEADER_KIND, RANK_FIELDS

Row = tuple[int | None, str, int, float]
Links = list[dict[str, int]]
"""NVLinks of a device, as in a fact ``nvlinks``."""
_LOST = "GPU is lost"
"""NVML's words for a device that fell off the bus."""
_NESTED = ("cpu", "pressure", "memory", "cgroup")


@dataclass(frozen=True)
class Exit:
    """The end of a process as it was seen from outside; code and signal are None when its parent was quicker."""

    at_ns: int
    code: int | None = None
    signal: int | None = None


@dataclass
class NodeSamples:
    """One file of samples."""

    host: str
    rows: list[Row] = field(default_factory=list)
    rank_of: dict[int, int] = field(default_factory=dict)
    """Rank by pid, for the ranks seen on this host."""
    devices: Mapping[str, Any] = field(default_factory=dict)
    """The fact about its devices."""
    xids: list[tuple[int, int, int]] = field(default_factory=list)
    """(Unix ns, device, code)."""
    users: dict[int, set[int]] = field(default_factory=dict)
    """By device: pids that were seen to use it."""
    cpus: int | None = None
    affinity: dict[int, str] = field(default_factory=dict)
    """By pid: CPUs it may use, as it was told last."""
    topology: str = ""
    """``nvidia-smi topo -m``."""
    nvlinks: dict[int, tuple[Links, Links]] = field(default_factory=dict)
    """By device: what was told first and last."""
    remapped: dict[int, list[int]] = field(default_factory=dict)
    """By device: memory rows, [corrected, uncorrected, pending, failed], in the last sample."""
    ports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By "device/port" of InfiniBand and RoCE: rate, state, link_layer."""
    lost: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By device: (Unix ns, what the driver said) when it was first found gone."""
    exits: dict[int, Exit] = field(default_factory=dict)
    """By pid: ends of training processes."""
    unreadable: int = 0


def read_samples(data: bytes, *, source: str) -> NodeSamples:
    """The samples in *data*; raises :class:`~ddiag.errors.InputError` when it is no such file."""
    *lines, _unfinished = data.split(b"\n")
    first = decode(lines[0]) if lines else None
    if first is None or first.get("kind") != HEADER_KIND or not isinstance(first.get("format_version"), int):
        raise InputError(f"{source}: not a file of samples of ddiag")
    check_version(first["format_version"], Path(source))
    found = NodeSamples(str(first.get("host", "")))
    if _is_number(first.get("cpus")):
        found.cpus = int(first["cpus"])
        found.rows.append((None, "cpu.count", int(first.get("t", 0)), float(first["cpus"])))
    for line in lines[1:]:
        sample = decode(line)
        if sample is None or not isinstance(sample.get("t"), int):
            found.unreadable += 1
        else:
            _take(found, sample)
    return found


def _take(found: NodeSamples, sample: Mapping[str, Any]) -> None:
    kind, at = sample.get("kind"), int(sample["t"])
    if kind == "devices":
        found.devices = sample
    elif kind == "xid":
        found.xids.append((at, _whole(sample.get("device")), _whole(sample.get("xid"))))
    elif kind == "device_processes":
        pids = sample.get("pids")
        users = found.users.setdefault(_whole(sample.get("device")), set())
        users |= {pid for pid in pids if isinstance(pid, int)} if isinstance(pids, list) else set()
    elif kind == "exit":
        _ended(found, sample)
    elif kind == "affinity" and isinstance(sample.get("pid"), int):
        found.affinity[sample["pid"]] = str(sample.get("cpus", ""))
    elif kind == "topology":
        found.topology = str(sample.get("text", ""))
    elif kind == "ib_ports":
        found.ports = {name: _mapping(port) for name, port in _mapping(sample.get("ports")).items()}
    elif kind == "nvlinks":
        _linked(found, sample)
    elif kind == "device_trouble" and _LOST in str(sample.get("what")):
        found.lost.setdefault(_whole(sample.get("device")), (at, str(sample["what"])))
    elif kind == "sample":
        found.rows.extend((rank, name, at, value) for rank, name, value in _values(found, sample))


def _ended(found: NodeSamples, line: Mapping[str, Any]) -> None:
    pid, at_ns = line.get("pid"), line.get("at")
    if isinstance(pid, int) and isinstance(at_ns, int):
        code, number = line.get("code"), line.get("signal")
        found.exits[pid] = Exit(
            at_ns, code if isinstance(code, int) else None, number if isinstance(number, int) else None
        )


def _linked(found: NodeSamples, line: Mapping[str, Any]) -> None:
    index, given = line.get("device"), line.get("links")
    if isinstance(index, int) and isinstance(given, list):
        links = [{k: v for k, v in one.items() if isinstance(v, int)} for one in given if isinstance(one, Mapping)]
        found.nvlinks[index] = (found.nvlinks.get(index, (links, links))[0], links)


def _values(found: NodeSamples, sample: Mapping[str, Any]) -> Iterator[tuple[int | None, str, float]]:
    for part in _NESTED:
        yield from ((None, f"{part}.{name}", value) for name, value in _numbers(sample.get(part)))
    for part in ("disks", "net", "ib"):
        for device, values in _mapping(sample.get(part)).items():
            for at, value in enumerate(values if isinstance(values, list) else []):
                if _is_number(value):
                    yield None, f"{part}.{device}.{_FIELDS[part][at] if at < len(_FIELDS[part]) else at}", float(value)
    for row in sample.get("ranks") or []:
        if isinstance(row, list) and len(row) >= 2 and all(isinstance(one, int) for one in row[:2]):
            found.rank_of[row[0]] = row[1]
            yield from (
                (row[1], f"process.{name}", float(value))
                for name, value in zip(RANK_FIELDS[2:], row[2:], strict=False)
                if _is_number(value)
            )
    for index, device in enumerate(sample.get("devices") or []):
        yield from ((None, f"device{index}.{name}", value) for name, value in _numbers(device))
        for field_name, names in _LISTED.items():
            listed = _mapping(device).get(field_name)
            if isinstance(listed, list) and all(map(_is_number, listed)):
                yield from (
                    (None, f"device{index}.{name}", float(one)) for name, one in zip(names, listed, strict=False)
                )
                if field_name == "remapped_rows":
                    found.remapped[index] = listed


_FIELDS = {
    "disks": ("read_bytes", "written_bytes", "busy_ms"),
    "net": ("rx_bytes", "tx_bytes", "errors", "dropped"),
    "ib": (
        *("rx_bytes", "tx_bytes", "errors", "xmit_wait"),
        *("xmit_discards", "out_of_sequence", "packet_seq_err", "ack_timeouts", "rnr_retries", "cnp_sent"),
    ),
}
_LISTED = {
    "remapped_rows": ("rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed"),
    "throttled_us": ("power_us", "thermal_us", "sync_boost_us", "board_us"),
}
"""Lists of a device's entry: names of their values."""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    """-1 for what is none (the driver did not tell, or the line is damaged)."""
    return value if isinstance(value, int) else -1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers(value: Any) -> Iterator[tuple[str, float]]:
    for name, one in _mapping(value).items():
        if _is_number(one):
            yield name, float(one)


def counters(nodes: Iterable[NodeSamples]) -> pl.DataFrame:
    """The table ``counters``; names of a host's own values begin with the host when there are several."""
    nodes = list(nodes)
    several = len({node.host for node in nodes}) > 1
    rows = [
        (rank, f"{node.host}:{name}" if several and rank is None else name, at, value)
        for node in nodes
        for rank, name, at, value in node.rows
    ]
    return pl.DataFrame(rows, schema=TABLES["counters"].schema, orient="row")
