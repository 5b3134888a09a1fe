"""Which rank this process is, from torch.distributed or from what launchers put into the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


@dataclass(frozen=True)
class Identity:
    rank: int
    world_size: int
    local_rank: int
    attempt: int = 0
    """Restarts of the workers by torchelastic before this one."""


def identity(environment: Mapping[str, str] | None = None) -> Identity:
    """As torch.distributed says once it is initialised, else as the launcher says, else a job of one."""
    given = os.environ if environment is None else environment
    rank, world = _first(given, _RANK, 0), _first(given, _WORLD, 1)
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    return Identity(rank, world, _first(given, _LOCAL, rank), _first(given, ("TORCHELASTIC_RESTART_COUNT",), 0))


_HELPERS = ("torch.distributed.checkpoint._async_process_executor",)
"""Modules of torch whose functions run as processes that help a rank."""


def is_helper() -> bool:
    """This process would pass for the rank that started it: it joins a group of its own under that rank's number.

    ``async_save`` with ``AsyncCheckpointerType.PROCESS`` saves in such a process.
    """
    processes = sys.modules.get("multiprocessing.process")
    target = getattr(processes.current_process(), "_target", None) if processes is not None else None
    return getattr(target, "__module__", None) in _HELPERS


def _first(given: Mapping[str, str], names: tuple[str, ...], otherwise: int) -> int:
    for name in names:
        text = given.get(name, "")
        if text.isdigit():
            return int(text)
    return otherwise


def start_ticks(pid: int | str = "self") -> int:
    """Field 22 of /proc/PID/stat; 0 where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
