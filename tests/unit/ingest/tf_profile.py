"""Tells a small TensorFlow profile in a few words: as the trace viewer's JSON, or as the profiler's xplane.pb."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PIDS = {"/host:CPU": 701, "/device:GPU:0": 1, "/device:GPU:1": 2, "/device:TPU:0": 3}
Span = dict[str, Any]


def span(line: str, name: str, start: float, dur: float, *, plane: str = "/host:CPU", **args: Any) -> Span:
    """A span on a line of a plane; µs."""
    return {"plane": plane, "line": line, "name": name, "ts": start, "dur": dur, "args": args}


def operator(name: str, start: float, dur: float, line: str = "tf_Compute/5", **args: Any) -> Span:
    """As the viewer writes ``scope/name:Type``."""
    return span(line, name.rpartition(":")[2], start, dur, long_name=name, **args)


def kernel(name: str, start: float, dur: float, line: str = "Stream #7(Kernel)", device: int = 0, **args: Any) -> Span:
    return span(line, name, start, dur, plane=f"/device:GPU:{device}", **args)


def step(number: int, start: float, dur: float) -> Span:
    return span("python", f"train {number}", start, dur, step_num=str(number))


def text(spans: Iterable[Span], host: str = "") -> str:
    """The viewer's JSON, with the empty event it ends with."""
    spans = list(spans)
    tids = {key: 1000 + place for place, key in enumerate(dict.fromkeys((s["plane"], s["line"]) for s in spans))}
    events: list[dict[str, Any]] = []
    for plane in dict.fromkeys(s["plane"] for s in spans):
        name = f"{host} {plane}".strip()
        events.append({"args": {"name": name}, "name": "process_name", "ph": "M", "pid": PIDS[plane]})
    for (plane, line), tid in tids.items():
        events.append({"args": {"name": line}, "name": "thread_name", "ph": "M", "pid": PIDS[plane], "tid": tid})
    for one in spans:
        place = {"pid": PIDS[one["plane"]], "tid": tids[one["plane"], one["line"]]}
        events.append({"ph": "X", **place, **{key: one[key] for key in ("name", "ts", "dur", "args")}})
    head = '{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},\n"traceEvents":[\n'
    return head + ",\n".join([*map(json.dumps, events), "{}"]) + "]}"


def write(path: Path, *spans: Span, host: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(spans, host))
    return str(path)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(data)) + data


def xspace(*spans: Span) -> bytes:
    """The same spans as an XSpace (xplane.proto); every argument is a text or an unsigned integer."""
    return b"".join(
        block(1, _plane(plane, [one for one in spans if one["plane"] == plane]))
        for plane in dict.fromkeys(one["plane"] for one in spans)
    )


def _plane(name: str, spans: list[Span]) -> bytes:
    names = {key: place + 1 for place, key in enumerate(dict.fromkeys(_full_name(one) for one in spans))}
    stats = {key: place + 1 for place, key in enumerate(dict.fromkeys(key for one in spans for key in one["args"]))}
    lines = list(dict.fromkeys(one["line"] for one in spans))
    out = block(2, name)
    for place, line in enumerate(lines):
        events = [block(4, _event(one, names[_full_name(one)], stats)) for one in spans if one["line"] == line]
        out += block(3, number(1, 1000 + place) + block(2, line) + b"".join(events))
    for field, table in ((4, names), (5, stats)):
        for text_, code in table.items():
            out += block(field, number(1, code) + block(2, number(1, code) + block(2, text_)))
    return out


def _full_name(one: Span) -> str:
    return str(one["args"].get("long_name", one["name"]))


def _event(one: Span, name: int, stats: dict[str, int]) -> bytes:
    out = number(1, name) + number(2, int(one["ts"] * 10**6)) + number(3, int(one["dur"] * 10**6))
    for key, value in one["args"].items():
        said = block(5, value) if isinstance(value, str) else number(3, value)
        out += block(4, number(1, stats[key]) + said)
    return out
