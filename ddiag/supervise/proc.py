"""Reading /proc and /sys: files that may be missing, vanish or hold something else, which is then absent."""

from __future__ import annotations

import os
import re
from pathlib import Path

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def read_text(path: str | Path) -> str:
    """The file's content; empty when it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - three times as fast as Path.read_text
            return file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


def field(text: str, name: str) -> int | None:
    """The first number on the line that begins with *name*."""
    match = re.search(rf"^{re.escape(name)}:?\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def number(path: str | Path) -> int | None:
    """The whole file as a number."""
    text = read_text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat, which tells a process from a later one with its pid; 0 when it cannot be read."""
    words = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 else 0
