"""Bytes to plain text: every packing, whole and broken."""

from __future__ import annotations

import gzip
import random
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from ddiag.ingest.sources import Source, open_text

TEXT = b"".join(b"line %d of the text\n" % k for k in range(20_000))
NOISE = bytes((k * 7919 >> 3) % 251 for k in range(400_000))


def read_all(path: Path, member: str = "") -> tuple[bytes, str]:
    with open_text(Source(str(path), member, bytes=path.stat().st_size)) as text:
        parts = []
        while part := text.read(10_000):
            parts.append(part)
        return b"".join(parts), text.damage


@pytest.mark.parametrize(
    "packed",
    [
        TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT[:100_000]) + gzip.compress(TEXT[100_000:]),
        gzip.compress(TEXT) + b"\0" * 1000,
        zstandard.compress(TEXT),
        zstandard.compress(TEXT[:100_000]) + zstandard.compress(TEXT[100_000:]),
    ],
    ids=["plain", "gzip", "gzip of two members", "gzip with padding", "zstd", "zstd of two frames"],
)
def test_unpacks_whatever_the_name_says(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "rank0.txt"
    path.write_bytes(packed)
    assert read_all(path) == (TEXT, "")


def test_reads_packed_members_of_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "traces.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank0.json", TEXT)
        archive.writestr("rank1.json.gz", gzip.compress(TEXT))
    assert read_all(path, "rank0.json")[0] == TEXT
    assert read_all(path, "rank1.json.gz")[0] == TEXT


def test_a_cut_gzip_gives_what_is_there_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    packed = gzip.compress(NOISE)
    path.write_bytes(packed[: len(packed) // 2])
    text, damage = read_all(path)
    assert NOISE.startswith(text)
    assert len(text) > len(NOISE) // 4
    assert damage == "the gzip data is cut off"


def test_a_damaged_gzip_gives_what_stands_before_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    text = NOISE * 4
    packed = bytearray(gzip.compress(text))
    middle = len(packed) // 2
    packed[middle : middle + 2000] = bytes(2000)
    path.write_bytes(packed)
    got, damage = read_all(path)
    assert text[: len(text) // 4] == got[: len(text) // 4]
    assert "damaged gzip data" in damage


def test_a_cut_zstd_gives_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "t.zst"
    packed = zstandard.compress(NOISE * 3)
    path.write_bytes(packed[: 2 * len(packed) // 3])
    text, _ = read_all(path)
    assert (NOISE * 3).startswith(text)
    assert len(text) > 200_000


def test_a_small_file_that_unpacks_to_much_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(bytes(300 << 20), 1))
    with open_text(Source(str(path))) as text:
        assert max(len(part) for part in iter(lambda: text.read(1 << 20), b"")) <= 4 << 20


def test_peeking_takes_nothing_away(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(TEXT)
    with open_text(Source(str(path))) as text:
        head = text.peek(100)
        assert TEXT.startswith(head)
        assert text.peek(300_000).startswith(head)
        assert text.read(len(TEXT)) == TEXT


@pytest.mark.parametrize("pack", [lambda data: gzip.compress(data, 1), zstandard.compress], ids=["gzip", "zstd"])
def test_large_files_are_unpacked_ahead_and_may_be_left(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "t"
    data = random.Random(1).randbytes(3 << 20) * 2
    path.write_bytes(pack(data))
    assert path.stat().st_size > 1 << 20
    assert read_all(path) == (data, "")
    threads = threading.active_count()
    with open_text(Source(str(path), bytes=path.stat().st_size)) as text:
        assert data.startswith(text.read(1000))
        assert threading.active_count() > threads
    assert threading.active_count() == threads
