"""Exit codes and signals as launchers print them."""

from __future__ import annotations

import signal
from collections.abc import Mapping

_BY_NAME: Mapping[str, int] = {one.name: one.value for one in signal.Signals}
_BY_WORD = {
    "Killed": 9, "Terminated": 15, "Aborted": 6, "Segmentation fault": 11, "Bus error": 7, "Interrupt": 2,
    "Floating point exception": 8, "Illegal instruction": 4, "Hangup": 1,
}  # fmt: skip


def number_of(said: str) -> int | None:
    """``SIGTERM``, ``Signals.SIGTERM``, ``15``, ``Killed`` as a number."""
    word = said.rsplit(".", 1)[-1].strip()
    if word.isdigit():
        return int(word)
    return _BY_NAME.get(word) or _BY_WORD.get(word)


def name_of(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def of_exit_code(code: int) -> int | None:
    """The signal that an exit code stands for: -9, or 137 as shells say it."""
    if code < 0:
        return -code
    return code - 128 if 128 < code < 128 + 65 else None
