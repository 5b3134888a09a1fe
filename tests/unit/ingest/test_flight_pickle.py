"""A dump never runs code: whatever a pickle holds beside plain data refuses it."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from ddiag.ingest import load
from ddiag.ingest.flight_dump import dump_of
from ddiag.ingest.flight_pickle import plain_objects
from ddiag.ingest.read import Refused, read_source
from ddiag.ingest.sources import Source
from ddiag.ingest.trace import UnusableError
from tests.unit.ingest.flight_dumps import dump, entry, write

PROTOCOLS = (2, 3, 4, 5)


class _Calls:
    """Pickles as a call of *function*."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def _text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_data_comes_back_in_every_protocol(protocol: int) -> None:
    made = dump([entry(), entry(1, input_sizes=[], timeout_ms=None)]) | {"odd": (1, 2.5, "é", None, True, (), 2**70)}
    assert plain_objects(pickle.dumps(made, protocol)).value == made


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("place", ["top", "entry", "key"])
def test_a_call_is_refused_and_not_made(protocol: int, place: str, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    evil = _Calls(os.system, f"touch {proof}")
    made = {"top": evil, "entry": dump([entry(state=evil)]), "key": {"entries": [], evil: 1}}[place]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(made, protocol))
    refused = read_source(Source(str(path)))
    assert isinstance(refused, Refused)
    assert "could run code" in refused.why
    assert "system" in refused.why
    assert "\n" not in refused.why
    assert not proof.exists()


@pytest.mark.parametrize(
    "attack",
    [
        pickle.dumps(_Calls(eval, "1+1"), 2),
        pickle.dumps(_Calls(builtins.exec, "raise SystemExit"), 4),
        pickle.dumps(_Calls(getattr, "", "join"), 4),
        pickle.dumps(os.system, 0),
        b"\x80\x02cos\nsystem\n" + _text("true") + b"\x85R.",
        b"\x80\x02(" + _text("true") + b"ios\nsystem\n.",
        b"\x80\x02(cos\nsystem\n" + _text("true") + b"o.",
        b"\x80\x04" + _text("os") + _text("system") + b"\x93.",
        b"\x80\x02Pid of a module\n.",
        b"\x80\x02" + _text("id") + b"Q.",
        b"\x80\x02\x82\x07.",
        b"\x80\x02}" + _text("x") + b"b.",
        b"\x80\x02" + _text("f") + b")R.",
        b"\x80\x02" + _text("f") + b")\x81.",
        b"\x80\x05\x97.",
    ],
    ids=[
        "eval", "exec", "getattr", "a function", "REDUCE", "INST", "OBJ", "STACK_GLOBAL", "PERSID", "BINPERSID",
        "EXT1", "BUILD", "REDUCE of a text", "NEWOBJ of a text", "NEXT_BUFFER",
    ],
)  # fmt: skip
def test_every_opcode_that_could_act_is_refused(attack: bytes) -> None:
    with pytest.raises(UnusableError) as refused:
        plain_objects(attack)
    assert "\n" not in str(refused.value)


def test_an_extension_somebody_registered_and_used_is_refused() -> None:
    copyreg.add_extension("os", "system", 213)
    try:
        assert pickle.loads(b"\x80\x02\x82\xd5.") is os.system  # noqa: S301 - now it is cached
        with pytest.raises(UnusableError, match="system"):
            plain_objects(b"\x80\x02\x82\xd5.")
    finally:
        copyreg.remove_extension("os", "system", 213)


def test_a_dump_that_is_cut_off_is_used_as_far_as_it_goes() -> None:
    whole = pickle.dumps(dump([entry(record) for record in range(50)]), 2)
    for cut in range(250, len(whole) - 1, 97):
        found = dump_of(whole[:cut])
        assert found.damage
        assert found.version == (2, 10)
        assert [one["record_id"] for one in found.entries] == list(range(len(found.entries)))
        assert all(one["state"] == "completed" and one["retired"] for one in found.entries)
    assert len(found.entries) >= 48


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_cut_and_no_flipped_byte_gives_a_traceback(protocol: int) -> None:
    whole = bytearray(pickle.dumps(dump([entry(record) for record in range(3)]), protocol))
    for place in range(0, len(whole), 7):
        broken = bytes(whole[:place]) + bytes([whole[place] ^ 0x15]) + bytes(whole[place + 1 :])
        for data in (broken, bytes(whole[:place])):
            with contextlib.suppress(UnusableError):
                plain_objects(data)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        ({"segments": [], "device_traces": []}, "memory snapshot"),
        ({"model": {}, "optimizer": {}, "step": 3}, "checkpoint"),
        ({"weights": [1.0]}, "keys: weights"),
        ([1, 2, 3], "without Flight Recorder entries"),
        ("text", "holds a str"),
        ({"version": "2.10", "entries": [], "pg_config": None}, "no entries and no process groups"),
    ],
)
def test_other_pickles_are_refused_in_one_line_that_says_what_they_are(made: Any, word: str, tmp_path: Path) -> None:
    refused = read_source(Source(str(write(tmp_path, made))))
    assert isinstance(refused, Refused)
    assert word in refused.why
    assert "\n" not in refused.why


def test_a_checkpoint_beside_dumps_in_a_folder_is_skipped_and_said(tmp_path: Path) -> None:
    write(tmp_path, dump([entry()]))
    write(tmp_path, {"model": {}, "step": 3}, "checkpoint.pkl")
    (tmp_path / "objects.pkl").write_bytes(pickle.dumps(_Calls(print, "x"), 2))
    run = load([str(tmp_path)])
    assert not run.coverage.unreadable
    assert len([note for note in run.coverage.notes if "skipped" in note]) == 2
