"""A trace in chunks gives exactly the events and metadata that a JSON parser sees in the whole."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ddiag.ingest import sources, stream
from ddiag.ingest.events import Complete, CompleteCollective
from ddiag.ingest.sources import PlainText
from ddiag.ingest.stream import EventStream
from tests.unit.ingest.kineto_text import healthy, kernel, op, trace


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 700)
    monkeypatch.setattr(sources, "READ_BYTES", 300)


def read(data: bytes) -> tuple[list[tuple[str, Any]], EventStream]:
    """(name, ts) of the complete events, and the exhausted stream."""
    events = EventStream(PlainText(io.BytesIO(data), len(data)))
    spans = [event for chunk in events for event in chunk if isinstance(event, (Complete, CompleteCollective))]
    return [(event.name, event.ts) for event in spans], events


def expected(content: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(event["name"], event["ts"]) for event in content["traceEvents"] if event["ph"] == "X"]


def one_event_a_line(content: dict[str, Any]) -> str:
    head = {key: value for key, value in content.items() if key != "traceEvents"}
    return json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(map(json.dumps, content["traceEvents"])) + "\n]}"


NESTED = [
    kernel("k", 0, 1, list=[{"ph": "X", "name": "inner"}, {"name": "b", "ts": 3}], text='}, {"ph": "X", "name": "no"'),
    op("after", 5, 1),
]
CONTENT = {
    "healthy": healthy(),
    "many": trace(*(kernel(f"kernel_{k}", k, 1) for k in range(200)), deviceProperties=[{"id": 0}, {"id": 1}]),
    "nested objects in arguments": trace(*(NESTED * 20)),
    "no events": trace(),
    "one event": trace(op("a", 0, 1)),
    "text that looks like structure": trace(*(op('] } , { "traceEvents": [', k, 1) for k in range(40))),
}  # fmt: skip
LAYOUTS = {
    "compact": lambda content: json.dumps(content, separators=(",", ":")),
    "plain": json.dumps,
    "pretty": lambda content: json.dumps(content, indent=4),
    "one event a line": one_event_a_line,
    "CRLF": lambda content: json.dumps(content, indent=1).replace("\n", "\r\n"),
    "trailing newline": lambda content: json.dumps(content) + "\n",
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("content", CONTENT.values(), ids=CONTENT.keys())
def test_chunks_give_what_the_whole_gives(content: dict[str, Any], layout: Any) -> None:
    found, events = read(layout(content).encode())
    assert found == expected(content)
    assert events.metadata == {key: value for key, value in content.items() if key != "traceEvents"}
    assert (events.dropped, events.truncated, events.damaged) == (0, False, False)


@pytest.mark.parametrize("size", range(40, 1200, 61))
def test_any_chunk_size_gives_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", size)
    monkeypatch.setattr(sources, "READ_BYTES", size)
    content = CONTENT["nested objects in arguments"]
    found, events = read(json.dumps(content).encode())
    assert found == expected(content)
    assert not events.truncated


@pytest.mark.parametrize("content", [CONTENT["many"], CONTENT["healthy"]], ids=["many", "healthy"])
def test_metadata_may_follow_the_events(content: dict[str, Any]) -> None:
    events_first = {"traceEvents": content["traceEvents"], **{k: v for k, v in content.items() if k != "traceEvents"}}
    long_tail = {**events_first, "INFO": ["x" * 5000], "groups": [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}]}
    for layout in (json.dumps(long_tail), json.dumps(long_tail, indent=2)):
        found, events = read(layout.encode())
        assert found == expected(content)
        assert events.metadata == {key: value for key, value in long_tail.items() if key != "traceEvents"}
        assert not events.truncated


def test_a_bare_list_of_events_is_a_trace() -> None:
    content = CONTENT["many"]
    found, events = read(json.dumps(content["traceEvents"]).encode())
    assert found == expected(content)
    assert not events.truncated


def test_a_bare_list_without_its_bracket_is_used_to_the_end() -> None:
    content = CONTENT["many"]
    found, events = read(json.dumps(content["traceEvents"]).encode()[:-1])
    assert found == expected(content)
    assert events.truncated


def test_a_long_header_is_read_through() -> None:
    content = trace(op("a", 0, 1), config={"text": "y" * 10_000, "list": list(range(2000))})
    found, events = read(json.dumps(content).encode())
    assert found == expected(content)
    assert events.metadata["config"] == content["config"]


@pytest.mark.parametrize("indent", [None, 2])
def test_cut_anywhere_the_whole_events_before_the_cut_remain(indent: int | None) -> None:
    content = {**healthy(), "traceName": "x"}
    text = json.dumps(content, indent=indent).encode()
    wanted = expected(content)
    start = text.index(b'"traceEvents"')
    for cut in range(start + 20, len(text) - 1, 7):
        found, events = read(text[:cut])
        assert found == wanted[: len(found)]
        assert len(found) >= text[:cut].count(b'"ph": "X"') - 1
        assert events.truncated
        assert events.metadata["distributedInfo"] == content["distributedInfo"]


def test_damaged_metadata_keeps_the_keys_before_the_damage() -> None:
    text = json.dumps(healthy(host_name="n1")).replace('"host_name": "n1"', '"host_name": "n1", "bad": @@@')
    found, events = read(text.encode())
    assert found == expected(healthy())
    assert events.metadata["distributedInfo"]["rank"] == 0
    assert events.metadata["host_name"] == "n1"


def test_one_damaged_event_among_many_is_dropped_alone() -> None:
    content = CONTENT["many"]
    text = json.dumps(content).replace('"name": "kernel_77"', '"name": kernel_77')
    found, events = read(text.encode())
    assert found == [entry for entry in expected(content) if entry[0] != "kernel_77"]
    assert events.dropped == 1


def test_text_without_any_boundary_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_EVENT_BYTES", 5_000)
    monkeypatch.setattr(stream, "MAX_UNCUT_BYTES", 2_000)
    found, events = read(b'{"traceEvents": [{"ph": "X", "name": "' + b"x" * 50_000 + b'"}]}')
    assert found == []
    assert events.dropped > 0
