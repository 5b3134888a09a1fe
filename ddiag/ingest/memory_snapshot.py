"""Snapshots of the caching allocator (``torch.cuda.memory._dump_snapshot``, also as JSON): what is live, and whose.

The pickle holds plain containers only and is read as such; whatever else a pickle holds is refused unread.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddiag.ingest.clues import Clues, to_tables
from ddiag.ingest.file_rank import rank_from_name
from ddiag.ingest.flight_pickle import plain_objects
from ddiag.ingest.sources import PlainText, Source
from ddiag.ingest.trace import UnusableError
from ddiag.model.incident import Event, Value

NAME = "memory_snapshot"
READ_BYTES = 16 << 20
MOST_BYTES = 2 << 30
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_STATES = re.compile(
    r"torch/optim/|_init_group|_lazy_init|deepspeed/runtime/zero|/optimizer\.py|flat_param|reset_parameters|"
    r"nn/modules/module\.py.*(?:_apply|convert|to)$|from_pretrained|load_state_dict|parameter\.py"
)
_BACKWARD = re.compile(
    r"torch/autograd/__init__\.py|torch/autograd/graph\.py.*_engine_run_backward|"
    r"_tensor\.py.*backward"
)
_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/torch/(?:nn|autograd|_|optim|utils)|^\?\?|<frozen|\.(?:cpp|"
    r"cc|cu|h)$"
)
_TOP = 8
Block = Mapping[str, Any]


def matches(head: bytes, _: str) -> bool:
    """A pickle or JSON object whose first keys are those of a snapshot."""
    if not (_PICKLE.match(head) or head.lstrip()[:1] in (b"{", b"[")):
        return False
    return (b"segment_type" in head and b"total_size" in head) or b"device_traces" in head[:4096]


def read(source: Source, text: PlainText) -> Clues:
    """Raises UnusableError for what is no snapshot or holds no memory."""
    value, damage = _value(_whole(text))
    segments, traces = _parts(value)
    events = list(_events(segments, traces, _expandable(value)))
    if not events:
        raise UnusableError("a memory snapshot without any segment: take it with torch.cuda.memory._dump_snapshot()")
    notes = tuple(filter(None, (text.damage, damage)))
    rank = rank_from_name(source.name)
    return Clues(source, NAME, to_tables(events), rank=rank, read=len(segments), notes=notes)


def _whole(text: PlainText) -> bytes:
    parts, size = [], 0
    while size < MOST_BYTES and (chunk := text.read(READ_BYTES)):
        parts.append(chunk)
        size += len(chunk)
    return b"".join(parts)


def _value(data: bytes) -> tuple[Any, str]:
    if _PICKLE.match(data):
        plain = plain_objects(data)
        return plain.value, plain.damage
    try:
        return json.loads(data), ""
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"a memory snapshot in JSON that does not parse ({error})") from error


def _parts(value: Any) -> tuple[list[Block], list[list[Block]]]:
    """Segments, and the trace of each device; torch 1.12 and 1.13 give the bare list of segments."""
    if isinstance(value, list):
        return _dicts(value), []
    if not isinstance(value, dict):
        raise UnusableError("no memory snapshot: neither segments nor traces in it")
    traces = value.get("device_traces")
    return _dicts(value.get("segments")), [_dicts(one) for one in traces] if isinstance(traces, list) else []


def _dicts(found: Any) -> list[Block]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _expandable(value: Any) -> bool:
    settings = value.get("allocator_settings") if isinstance(value, dict) else None
    return isinstance(settings, dict) and bool(settings.get("expandable_segments"))


def _events(segments: Sequence[Block], traces: Sequence[Sequence[Block]], expandable: bool) -> Iterator[Event]:  # noqa: FBT001
    by_device: dict[int, list[Block]] = defaultdict(list)
    for segment in segments:
        by_device[_int(segment.get("device"))].append(segment)
    for device in sorted({*by_device, *(place for place, trace in enumerate(traces) if trace)}):
        failed = [one for one in (traces[device] if device < len(traces) else ()) if one.get("action") == "oom"]
        fields = _device_fields(by_device[device], failed)
        fields |= {"device": device, "expandable": expandable or any(s.get("is_expandable") for s in by_device[device])}
        yield Event("cuda.snapshot", fields)
        if failed:
            yield _oom(device, fields, failed[-1])


def _oom(device: int, fields: Mapping[str, Value], failed: Block) -> Event:
    """The failed request in the words of the OOM text; what the device has is what is reserved and what was free."""
    reserved, allocated = _int(fields.get("reserved_bytes")), _int(fields.get("allocated_bytes"))
    free = _int(failed.get("device_free"))
    said: dict[str, Value] = {
        "device": device, "tried_bytes": _int(failed.get("size")), "free_bytes": free, "allocated_bytes": allocated,
        "unallocated_bytes": max(reserved - allocated, 0), "capacity_bytes": reserved + free, "handled": False,
        "expandable": fields.get("expandable"),
    }  # fmt: skip
    return Event("cuda.oom", said)


def _device_fields(segments: Sequence[Block], failed: Sequence[Block]) -> dict[str, Value]:
    reserved = allocated = largest = states = activations = 0
    lines: Counter[str] = Counter()
    for segment in segments:
        reserved += _int(segment.get("total_size"))
        for block in _dicts(segment.get("blocks")):
            size = _int(block.get("size"))
            if not str(block.get("state", "")).startswith("active"):
                largest = max(largest, size)
                continue
            allocated += size
            frames = _frames(block)
            kind = _kind(frames)
            states += size if kind == "states" else 0
            activations += size if kind == "activations" else 0
            if frames:
                lines[_users(frames)] += size
    top: list[Value] = [{"where": where, "bytes": size} for where, size in lines.most_common(_TOP)]
    return {
        "reserved_bytes": reserved, "allocated_bytes": allocated, "largest_free_bytes": largest, "ooms": len(failed),
        "oom_tried_bytes": max((_int(one.get("size")) for one in failed), default=0), "states_bytes": states,
        "activations_bytes": activations, "named_bytes": states + activations, "top": top,
    }  # fmt: skip


def _frames(block: Block) -> list[Block]:
    """Innermost first; torch 2.0 keeps them in the block's history."""
    own = _dicts(block.get("frames"))
    history = _dicts(block.get("history"))
    return own or (_dicts(history[0].get("frames")) if history else [])


def _kind(frames: Sequence[Block]) -> str:
    """states (parameters, gradients, optimizer), activations, or empty where the stack does not tell."""
    texts = [f"{frame.get('filename', '')} {frame.get('name', '')}" for frame in frames]
    names = [str(frame.get("name", "")) for frame in frames]
    if any(_STATES.search(text) for text in texts) or any(_BACKWARD.search(text) for text in texts):
        return "states"
    if "forward" in names or any(name.endswith(("_forward", "forward_impl")) for name in names):
        return "activations"
    return "states" if "__init__" in names else ""


def _users(frames: Sequence[Block]) -> str:
    """The innermost frame outside the libraries, as ``function (file.py:12)``."""
    own = next((frame for frame in frames if not _LIBRARY.search(str(frame.get("filename", "")))), frames[-1])
    file = str(own.get("filename", "")).rsplit("/", 1)[-1]
    return f"{own.get('name', '?')} ({file}:{own.get('line', '?')})"


def _int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
