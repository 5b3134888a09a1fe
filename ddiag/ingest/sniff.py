"""What kind of evidence a file is, told from its first bytes; one clear line for everything that is not a trace."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_BYTES = 64 * 1024
KINETO, TENSORFLOW, XPLANE = "kineto", "tensorflow", "xplane"
TEXT = "text"
"""Text that is no trace: a log, the output of a tool, a configuration."""

TRACE_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_EVENTS = re.compile(rb'\s*\[\s*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:')
_OBJECT = re.compile(rb"\s*\{")
_LINES_OF_OBJECTS = re.compile(rb"\s*\{(?:\s*'|[^\n]*\}[ \t\r]*\n)")
"""A log that begins with an object in one line: a trainer's ``{'loss': 2.0, …}``, or JSON lines."""
_KEY = re.compile(rb'"(\w{1,40})"\s*:')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_EXECUTION_TRACE = (
    "an execution trace (ExecutionTraceObserver), not a Kineto trace: give the file that "
    "the profiler's export_chrome_trace() wrote"
)
_XPLANE = re.compile(
    rb"\x0a(?:[\x80-\xff]{0,9}[\x00-\x7f])(?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12[\x01-\x7f]"
    rb"(?:/host:|/device:|#Chip|Task Environment|/custom:|Host CPUs|Syscalls)",
    re.DOTALL,
)
"""An XSpace of the TensorFlow profiler: its first plane, with its number (if not 0) and its name."""
_PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE), what)
    for pattern, what in (
        (rb"(?s).{0,40}brain\.Event:\d", "TensorBoard's event file (summaries), not a trace"),
        (rb"\x80[\x02-\x05]", "a pickle (memory snapshot, flight-recorder dump or checkpoint), not a PyTorch trace"),
        (rb"\s*<(?:!doctype|html|\?xml)", "an HTML or XML page (a login or error page saved instead of the trace?)"),
        (rb"\s*\[\s*\]\s*$", "an empty list: no events"),
        (rb"\s*\[\s*\[", "a list of lists (memory_timeline.raw?), not a trace: give the export_chrome_trace() file"),
        (
            rb"\s*\[\s*(?:[\"{\]]|-?[\d.e]+\s*(?:,\s*(?!\d+\]<)|\]\s*$))",
            "a JSON list that does not hold trace events",
        ),
    )
)

_MAGIC = (
    (b"SQLite format 3", "an SQLite database (Nsight Systems export?), not a PyTorch trace"),
    (b"PAR1", "a Parquet file, not a PyTorch trace"),
    (b"ARROW1", "an Arrow file, not a PyTorch trace"),
    (b"\x89HDF", "an HDF5 file, not a PyTorch trace"),
    (b"\x7fELF", "a program, not a trace"),
    (b"version https://git-lfs", "a git-lfs pointer: the trace itself was not downloaded (git lfs pull)"),
    (b"BZh", "packed with bzip2: unpack it first (gz, zst and zip are read directly)"),
    (b"\xfd7zXZ", "packed with xz: unpack it first (gz, zst and zip are read directly)"),
    (b"7z\xbc\xaf", "packed with 7-zip: unpack it first (gz, zst and zip are read directly)"),
    (b"\xff\xfe", "text in UTF-16 (PowerShell's redirection?): convert it to UTF-8, or copy the original file"),
    (b"\xfe\xff", "text in UTF-16: convert it to UTF-8, or copy the original file"),
    (b"PK", "a zip archive that is damaged or empty"),
)


@dataclass(frozen=True)
class Sniff:
    """``kind`` names the reader; empty means no reader, and ``why`` says what it is instead."""

    kind: str
    why: str = ""


def sniff(head: bytes) -> Sniff:
    """Judge from the first bytes of the unpacked text (``HEAD_BYTES`` or more; all of it for a short file)."""
    head = head.removeprefix(b"\xef\xbb\xbf")
    if _XPLANE.match(head):
        return Sniff(XPLANE)
    if not head.strip(b"\0 \t\r\n"):
        return Sniff("", "empty file (the profiler was stopped before it wrote, or the copy failed)")
    if TRACE_EVENTS.search(head):
        return Sniff(TENSORFLOW if _is_tensorflow(head) else KINETO)
    if _BARE_EVENTS.match(head):
        return Sniff(KINETO)
    why = _not_a_trace(head)
    return Sniff("", why) if why else Sniff(TEXT)


def begins_with_key(head: bytes, key: str) -> bool:
    """A JSON object whose first key is *key*, as our own files are marked."""
    return re.match(rb'\s*\{\s*"' + re.escape(key.encode()) + rb'"\s*:', head) is not None


def could_have_later_events(head: bytes) -> bool:
    """A JSON object whose ``traceEvents`` may come after a long header."""
    return bool(_OBJECT.match(head.removeprefix(b"\xef\xbb\xbf"))) and not _NODES.search(head)


def _is_tensorflow(head: bytes) -> bool:
    return b'"highres-ticks"' in head or b"/host:CPU" in head or b"/device:GPU" in head


def _not_a_trace(head: bytes) -> str:
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return what
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it first (gz, zst and zip are read directly)"
    for pattern, what in _PATTERNS:
        if pattern.match(head):
            return what
    if _OBJECT.match(head) and not _LINES_OF_OBJECTS.match(head):
        if _NODES.search(head):
            return _EXECUTION_TRACE
        keys = ", ".join(sorted({key.decode() for key in _KEY.findall(head[:2000])})[:4])
        return f'JSON without a list of "traceEvents" (keys: {keys or "none"}): not a PyTorch trace'
    if b"\0" in head[:4096]:
        return "binary data of an unknown kind, not a PyTorch trace"
    return ""
