"""Every kind of bad input: one clear line, no traceback, and the good part is used."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
import zstandard

from ddiag.errors import InputError
from ddiag.ingest import load
from ddiag.ingest.sniff import sniff
from tests.unit.ingest.kineto_text import BASE_US, healthy, kernel, launch, op, span, trace, write

EXECUTION_TRACE = (
    '{"schema": "1.0.3-chakra.0.0.4", "pid": 1, "time": "x", "start_ts": 3,\n "nodes": [{"id": 1, "name": "p"}]}'
)

NOT_TRACES = {
    "an empty file": (b"", "empty file"),
    "an empty gz": (gzip.compress(b""), "empty file"),
    "blank": (b" \n\0\0\n", "empty file"),
    "an execution trace": (EXECUTION_TRACE.encode(), "execution trace"),
    "a memory timeline": (b'[[1689, 0, [1, 2], 512], [1690, 1, [2, 3], 64]]', "memory_timeline"),
    "an HTML page": (b"<!DOCTYPE html><html>Sign in</html>", "HTML"),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
    "a pickle": (pickle.dumps({"entries": []}), "not a Flight Recorder dump"),
    "other JSON": (b'{"loss": 3.2, "step": 7}', '(keys: loss, step)'),
    "an empty object": (b"{}", "keys: none"),
    "an empty list": (b"[]", "no events"),
    "a list of numbers": (b"[1, 2]", "does not hold trace events"),
    "a text": (b"dear diary, all is well\n" * 50, "text in which ddiag knows no line"),
    "a database": (b"SQLite format 3\0" + bytes(100), "not a database"),
    "noise": (bytes(range(256)) * 8, "binary data"),
    "a tar archive": (b"rank0.json".ljust(257, b"\0") + b"ustar\0" + bytes(300), "tar archive"),
    "an xz file": (b"\xfd7zXZ\0" + bytes(50), "unpack it first"),
    "no events": (b'{"traceEvents": []}', "no events in it"),
    "only the header": (b'{"schemaVersion": 1, "traceEvents": [', "cut off before its first event"),
    "events of another tool": (
        b'{"traceEvents": [{"ph": "X", "cat": "blink", "name": "n", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}',
        "categories: blink (1)",
    ),
    "gz header only": (b"\x1f\x8b\x08\0\0\0\0\0", "gzip data is cut off"),
    "damaged gz": (b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"garbage!" * 30, "damaged gzip data"),
    "damaged zst": (b"\x28\xb5\x2f\xfd" + b"garbage!" * 30, "damaged zstd data"),
    "damaged zip": (b"PK\x03\x04" + b"garbage!" * 30, "zip"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "why"), NOT_TRACES.values(), ids=NOT_TRACES.keys())
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load([str(path)])
    assert why in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "why"), NOT_TRACES.values(), ids=NOT_TRACES.keys())
def test_one_bad_file_of_three_costs_only_itself(tmp_path: Path, content: bytes, why: str) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", healthy(rank, world=3))
    (tmp_path / "rank2.json").write_bytes(content)
    coverage = load([str(tmp_path)]).coverage
    assert coverage.ranks_seen == (0, 1)
    assert coverage.ranks_missing == (2,)
    said = [f"{path}: {reason}" for path, reason in coverage.unreadable] + list(coverage.notes)
    assert len([line for line in said if "rank2.json" in line and why in line]) == 1


def test_nothing_at_all_is_an_error() -> None:
    with pytest.raises(InputError, match="no input given"):
        load([])


def test_the_error_names_every_file_and_why(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "{}")
    write(tmp_path / "b.json", b"")
    with pytest.raises(InputError) as caught:
        load([str(tmp_path)])
    lines = str(caught.value).splitlines()
    assert lines[0] == "nothing usable:"
    assert "a.json" in lines[1]
    assert "b.json" in lines[2]


def test_a_named_file_that_is_no_trace_is_unreadable_but_one_in_a_folder_is_a_note(tmp_path: Path) -> None:
    good = write(tmp_path / "rank0.json", healthy())
    notes = write(tmp_path / "notes.txt", "hello")
    named, found = load([good, notes]).coverage, load([str(tmp_path)]).coverage
    assert [(path, why[:33]) for path, why in named.unreadable] == [(notes, "text in which ddiag knows no line")]
    assert found.unreadable == ()
    assert any(note.startswith(f"{notes} skipped: ") for note in found.notes)


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress, zstandard.compress], ids=["plain", "gz", "zst"])
def test_a_trace_cut_off_mid_write_is_used_up_to_the_cut(tmp_path: Path, pack: object) -> None:
    many = trace(*(kernel(f"k{k % 7}", k * 10, 8, correlation=k) for k in range(3000)))
    assert callable(pack)
    packed = pack(json.dumps(many).encode())
    path = tmp_path / "rank0.json"
    path.write_bytes(packed[: 3 * len(packed) // 4])
    run = load([str(path)])
    (entry,) = run.coverage.inputs
    assert 1500 < run.table("kernels").height < 3000
    assert "ends before its JSON does" in entry.note
    assert run.table("captures")["truncated"].to_list() == [True]


def test_a_whole_trace_is_not_called_truncated(tmp_path: Path) -> None:
    run = load([write(tmp_path / "rank0.json", healthy())])
    assert run.table("captures")["truncated"].to_list() == [False]
    assert run.coverage.inputs[0].note == ""


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "nan", "-inf"])
def test_literals_that_are_not_json_become_null_and_the_event_stays(tmp_path: Path, literal: str) -> None:
    text = json.dumps(trace(kernel("gemm", 0, 5, speed=12345), op("NaN Infinity nan", 1, 2))).replace("12345", literal)
    run = load([write(tmp_path / "rank0.json", text)])
    assert run.table("kernels").height == 1
    assert run.table("ops")["name"].to_list() == ["NaN Infinity nan"]
    assert run.coverage.dropped_records == 0


def test_bad_utf8_is_replaced(tmp_path: Path) -> None:
    data = json.dumps(trace(op("aten::x_y", 0, 5), kernel("gemm", 1, 2))).encode().replace(b"x_y", b"x\xff\xfey")
    run = load([write(tmp_path / "rank0.json", data)])
    assert run.table("ops")["name"].to_list() == ["aten::x\ufffd\ufffdy"]
    assert run.table("kernels").height == 1


def test_raw_control_characters_in_names_are_accepted(tmp_path: Path) -> None:
    data = json.dumps(trace(op("a|b", 0, 5))).replace("a|b", "a\n\tb")
    assert load([write(tmp_path / "rank0.json", data)]).table("ops")["name"].to_list() == ["a  b"]


def test_garbage_between_events_costs_only_what_it_covers(tmp_path: Path) -> None:
    events = [json.dumps(kernel(f"k{k}", k * 10, 8)) for k in range(9)]
    events[4] = events[4][:40] + "#### disk error ####" + events[4][60:]
    text = '{"traceEvents": [' + ", ".join(events) + "]}"
    run = load([write(tmp_path / "rank0.json", text)])
    assert run.table("kernels")["name"].cast(str).to_list() == [f"k{k}" for k in range(9) if k != 4]
    assert run.coverage.dropped_records == 1
    assert "1 of 9 events could not be understood" in run.coverage.inputs[0].note


@pytest.mark.parametrize(
    "change",
    [
        {"dur": None}, {"dur": -3}, {"dur": "long"}, {"dur": [1]}, {"ts": None}, {"ts": True}, {"ts": {}},
        {"ts": 1e300}, {"dur": 10**40},
    ],
    ids=str,
)  # fmt: skip
def test_an_event_without_usable_time_is_dropped_and_counted(tmp_path: Path, change: dict[str, object]) -> None:
    run = load([write(tmp_path / "rank0.json", trace({**kernel("bad", 0, 1), **change}, kernel("good", 5, 1)))])
    assert run.table("kernels")["name"].cast(str).to_list() == ["good"]
    assert run.coverage.dropped_records == 1


@pytest.mark.parametrize(
    "change",
    [
        {"args": None}, {"args": []}, {"args": "x"}, {"name": None}, {"name": 5}, {"cat": "kernel", "pid": [3]},
        {"tid": None}, {"tid": {"a": 1}}, {"extra": {"deep": [[{}]]}},
    ],
    ids=str,
)  # fmt: skip
def test_an_event_with_odd_fields_keeps_its_time(tmp_path: Path, change: dict[str, object]) -> None:
    run = load([write(tmp_path / "rank0.json", trace({**kernel("odd", 0, 7), **change}, kernel("good", 8, 1)))])
    lengths = (run.table("kernels")["end_ns"] - run.table("kernels")["start_ns"]).to_list()
    assert lengths == [7000, 1000]
    assert run.coverage.dropped_records == 0


def test_args_of_odd_types_do_not_cost_the_event(tmp_path: Path) -> None:
    odd = span(
        "kernel", "k", 0, 5, device="0", stream="stream 7", correlation="0x1", bytes=[1], **{"External id": 2**70}
    )
    row = load([write(tmp_path / "rank0.json", trace(odd))]).table("kernels").row(0, named=True)
    assert (row["device"], row["stream"]) == (0, 7)


def test_duplicated_keys_and_empty_members_do_not_matter(tmp_path: Path) -> None:
    text = json.dumps(healthy()).replace('"traceEvents": [', '"traceEvents": [null, 3, "x", [], {}, ')
    run = load([write(tmp_path / "rank0.json", text)])
    assert run.table("kernels").height == 2
    assert run.coverage.dropped_records == 5


def test_a_bomb_of_brackets_is_refused(tmp_path: Path) -> None:
    bomb = '{"traceEvents": [' + json.dumps(kernel("k", 0, 5)) + ', {"ph": "X", "args": ' + "[" * 200_000
    run = load([write(tmp_path / "rank0.json", bomb)])
    assert run.table("kernels").height == 1
    assert run.table("captures")["truncated"].to_list() == [True]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    run = load([write(tmp_path / "rank0.json", b"\xef\xbb\xbf" + json.dumps(healthy()).encode())])
    assert run.table("kernels").height == 2


def test_ids_beyond_64_bits_stay_distinct(tmp_path: Path) -> None:
    first, second = launch(0, 2**63 + 1), launch(9, 2**63 + 2)
    run = load([write(tmp_path / "rank0.json", trace(first, second, kernel("k", 20, 1, correlation=2**63 + 2)))])
    assert run.table("launches")["correlation"].n_unique() == 2
    assert run.table("kernels")["correlation"][0] == run.table("launches")["correlation"][1]


def test_times_before_the_epoch_base_are_kept(tmp_path: Path) -> None:
    event = {**kernel("k", 0, 5), "ts": 100}
    assert load([write(tmp_path / "rank0.json", trace(event))]).table("kernels")["start_ns"].to_list() == [100_000]
    assert BASE_US > 100


def test_utf_16_and_a_null_list_are_called_what_they_are() -> None:
    assert "UTF-16" in sniff('{"traceEvents": []}'.encode("utf-16")).why
    assert 'JSON without a list of "traceEvents"' in sniff(b'{"traceEvents": null}').why
