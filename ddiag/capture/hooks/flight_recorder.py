"""NCCL's Flight Recorder, which keeps the newest collectives: switched on where torch would leave it off.

Torch 2.9 and later keep 2000 by themselves, and warn about the older name of the setting.
"""

from __future__ import annotations

from collections.abc import MutableMapping

ENTRIES = "2000"
OLD_NAME = "TORCH_NCCL_TRACE_BUFFER_SIZE"
NEW_NAME = "TORCH_FR_BUFFER_SIZE"
_ON_BY_DEFAULT = (2, 9)


def prepare(environment: MutableMapping[str, str], *, torch_version: str, cuda: str | None) -> bool:
    """Before the first group is made; False when there is nothing to do or the user has set a size, which stays.

    ``TORCH_NCCL_ENABLE_TIMING`` is left alone: it adds an event to every collective.
    """
    if cuda is None or _number(torch_version) >= _ON_BY_DEFAULT or {OLD_NAME, NEW_NAME} & environment.keys():
        return False
    environment[OLD_NAME] = ENTRIES
    return True


def _number(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
