"""Bytes of evidence, wherever they lie and however they are packed: one forward-only reader of plain text.

What a file is comes from its content: names lie, and half-written archives still hold most of a trace.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import fsspec
import zstandard
from isal import isal_zlib

GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
READ_BYTES = 256 * 1024
"""Compressed bytes taken from the file at a time."""
UNPACK_BYTES = 2 * 1024 * 1024
"""Plain text unpacked at a time."""

ISAL_ERROR = cast(type[Exception], isal_zlib.error)
_WORTH_A_THREAD_BYTES = 1024 * 1024

STORAGE_ERRORS: tuple[type[Exception], ...] = (
    OSError, EOFError, ValueError, ImportError, RuntimeError, NotImplementedError,
    zipfile.BadZipFile, zstandard.ZstdError, zlib.error, ISAL_ERROR,
)  # fmt: skip
"""What file systems, remote stores and archives raise for evidence that cannot be read."""


@dataclass(frozen=True)
class Source:
    """One file, or one member of a zip archive."""

    path: str
    member: str = ""
    bytes: int = 0
    packed: bool = False
    """Compressed: ``bytes`` counts the packed size."""
    explicit: bool = True
    """Named by the user (alone or by a pattern), as opposed to found in a folder."""

    @property
    def label(self) -> str:
        return f"{self.path}!{self.member}" if self.member else self.path

    @property
    def text_bytes(self) -> int:
        """Size of its text, roughly: traces pack to about a twelfth."""
        return 12 * self.bytes if self.packed else self.bytes

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return (self.member or self.path).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def is_remote(path: str) -> bool:
    return "://" in path


def open_binary(path: str) -> IO[bytes]:
    if is_remote(path):
        handle: IO[bytes] = fsspec.open(path, "rb").open()
        return handle
    return Path(path).open("rb")


class PlainText:
    """Decompressed bytes, forward only. ``damage`` says in words where and why they stopped early."""

    def __init__(self, raw: IO[bytes], size: int) -> None:
        self._raw, self._size = raw, size
        self._taken = 0
        self.damage = ""
        self._pending: list[bytes] = []
        head = self._take()
        self._chunks = self._unpack(head)

    def read(self, size: int) -> bytes:
        """About *size* bytes; empty only at the end. Never raises for damaged data: see ``damage``."""
        gathered, total = self._pending, sum(map(len, self._pending))
        self._pending = []
        while total < size and (chunk := next(self._chunks, b"")):
            gathered.append(chunk)
            total += len(chunk)
        return b"".join(gathered)

    def peek(self, size: int) -> bytes:
        """The next *size* bytes or so, which ``read`` will return again."""
        text = self.read(size)
        self._pending = [text]
        return text

    def _take(self) -> bytes:
        data = self._raw.read(READ_BYTES)
        self._taken += len(data)
        return data

    def _stopped(self, why: str) -> None:
        share = f" at {self._taken / self._size:.0%} of the file" if 0 < self._taken < self._size else ""
        self.damage = f"{why}{share}"

    def _unpack(self, head: bytes) -> Iterator[bytes]:
        supply = self._supply(head)
        if head.startswith(GZIP):
            return self._ahead(self._gunzip(supply))
        if head.startswith(ZSTD):
            return self._ahead(self._unzstd(supply))
        return supply

    def _ahead(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Unpack the next chunk in a thread while this one is used: unpacking needs no interpreter lock."""
        if self._size < _WORTH_A_THREAD_BYTES:
            yield from chunks
            return
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(next, chunks, b"")
            while chunk := coming.result():
                coming = thread.submit(next, chunks, b"")
                yield chunk

    def close(self) -> None:
        """Stop unpacking; nothing can be read any more."""
        if isinstance(self._chunks, Generator):
            self._chunks.close()

    def _supply(self, head: bytes) -> Iterator[bytes]:
        data = head
        while data:
            yield data
            try:
                data = self._take()
            except STORAGE_ERRORS as error:
                self._stopped(f"reading failed ({_first_line(error)})")
                return

    def _gunzip(self, supply: Iterator[bytes]) -> Iterator[bytes]:
        """Members of a gzip file one after the other, each as far as it goes."""
        engine = isal_zlib.decompressobj(wbits=31)
        sizes = _growing_sizes()
        unfinished = False
        try:
            for data in supply:
                rest = data
                while rest:
                    if text := engine.decompress(rest, next(sizes)):
                        yield text
                    unfinished = not engine.eof
                    rest = engine.unconsumed_tail if unfinished else engine.unused_data.lstrip(b"\0")
                    if engine.eof:
                        if rest and not rest.startswith(GZIP):
                            return
                        engine = isal_zlib.decompressobj(wbits=31)
            while unfinished and (text := engine.decompress(b"", next(sizes))):
                yield text
        except (ISAL_ERROR, zlib.error) as error:
            self._stopped(f"damaged gzip data ({_first_line(error)})")
            return
        if unfinished and not engine.eof:
            self.damage = self.damage or "the gzip data is cut off"

    def _unzstd(self, supply: Iterator[bytes]) -> Iterator[bytes]:
        reader = zstandard.ZstdDecompressor().stream_reader(cast(IO[bytes], _Feed(supply)), read_across_frames=True)
        try:
            for size in _growing_sizes():
                text = reader.read(size)
                if not text:
                    return
                yield text
        except zstandard.ZstdError as error:
            self._stopped(f"damaged zstd data ({_first_line(error)})")


def _growing_sizes() -> Iterator[int]:
    """How much to unpack at a time: what is unpacked together with damage is lost, so small files go in small steps."""
    size = 32 * 1024
    while True:
        yield size
        size = min(2 * size, UNPACK_BYTES)


class _Feed:
    """An iterator of byte strings as the file object zstandard wants."""

    def __init__(self, supply: Iterator[bytes]) -> None:
        self._supply, self._rest = supply, b""

    def read(self, size: int = -1) -> bytes:
        data = self._rest or next(self._supply, b"")
        self._rest = data[size:] if size >= 0 else b""
        return data[:size] if size >= 0 else data


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def open_text(source: Source) -> Iterator[PlainText]:
    """The plain text of *source*; raises one of ``STORAGE_ERRORS`` when it cannot even be opened."""
    with open_binary(source.path) as raw:
        if not source.member:
            with closing(PlainText(raw, source.bytes)) as text:
                yield text
            return
        with (
            zipfile.ZipFile(raw) as archive,
            archive.open(source.member) as member,
            closing(PlainText(member, archive.getinfo(source.member).file_size)) as text,
        ):
            yield text


def read_whole(source: Source) -> bytes:
    """The bytes of *source* as they are now; for files that are small, like those of a recording."""
    with open_binary(source.path) as raw:
        if not source.member:
            return raw.read()
        with zipfile.ZipFile(raw) as archive:
            return archive.read(source.member)


def zip_members(path: str) -> list[tuple[str, int]]:
    """(name, unpacked size) of the files in an archive."""
    with open_binary(path) as raw, zipfile.ZipFile(raw) as archive:
        return [(entry.filename, entry.file_size) for entry in archive.infolist() if not entry.is_dir()]
