"""Shared memory, disks, and what earlier jobs left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ddiag.schema.node import CouldNot, Fact
from ddiag.supervise.proc import read_text

SHM = Path("/dev/shm")
_LEFTOVERS = ("nccl-*", "torch_*", "__KMP_REGISTERED_LIB_*", "sem.mp-*", "psm_*")
"""What NCCL, data loaders and OpenMP leave in shared memory when they are killed."""
_NETWORK_FILE_SYSTEMS = ("nfs", "lustre", "gpfs", "ceph", "cifs", "fuse", "beegfs", "wekafs", "9p", "virtiofs")


def facts() -> Iterator[Fact | CouldNot]:
    """See the module."""
    if SHM.is_dir():
        yield from _space("shm", SHM)
        yield Fact("shm.leftover_files", sum(len(list(SHM.glob(pattern))) for pattern in _LEFTOVERS))
    else:
        yield CouldNot("shared memory", "/dev/shm is not mounted")
    mounts = _mounts()
    for path in _places():
        yield from _space("disk", path, device=str(path))
        kind = next((kind for mount, kind in mounts if path.is_relative_to(mount)), "")
        if kind:
            yield Fact("disk.file_system", kind, str(path))
            yield Fact("disk.network", kind.startswith(_NETWORK_FILE_SYSTEMS), str(path))


def _space(prefix: str, path: Path, device: str | None = None) -> Iterator[Fact]:
    found = os.statvfs(path)
    yield Fact(f"{prefix}.size_bytes", found.f_blocks * found.f_frsize, device)
    yield Fact(f"{prefix}.free_bytes", found.f_bavail * found.f_frsize, device)
    if found.f_files:
        yield Fact(f"{prefix}.free_inodes_share", round(found.f_favail / found.f_files, 4), device)


def _places() -> list[Path]:
    """The working folder, the temporary one and the caches of downloaded models, each once."""
    cache = os.environ.get("HF_HOME") or "~/.cache"
    wanted = (Path.cwd(), Path(tempfile.gettempdir()), Path(cache).expanduser())
    return list(dict.fromkeys(path.resolve() for path in wanted if path.is_dir()))


def _mounts() -> list[tuple[Path, str]]:
    """(mount point, file system), the deepest first."""
    rows = [line.split() for line in read_text("/proc/self/mounts").splitlines()]
    found = [(Path(row[1].replace("\\040", " ")), row[2]) for row in rows if len(row) > 2]
    return sorted(found, key=lambda mount: -len(mount[0].parts))
