"""Rings of a run folder on a network file system: kept in the node's memory, linked from the folder.

A mapped page of NFS or Lustre that is being written back blocks whoever writes it next, for as long as the server
takes; and a ring's first page is written at every mark. So there the file lies in ``/dev/shm`` and a symbolic link in
the run folder; it survives its process as ever, but not its node. :func:`settle` puts the file in the link's place when
the job has ended.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ddiag.schema.folder import RANKS

MEMORY = Path("/dev/shm")
_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "smbfs", "beegfs", "beegfs_nodev", "ceph", "glusterfs"),
        *("afs", "wekafs", "pvfs2", "orangefs", "panfs", "9p", "virtiofs", "ocfs2", "gfs2", "dvs", "daos", "vastfs"),
    )
)
_USER_SPACE = "fuse"
"""FUSE file systems may be anything, and many are remote."""


def place(path: Path, *, mounts: str | None = None, memory: Path = MEMORY) -> Path:
    """Where the ring that *path* names is to be created: *path*, or in memory with a link at *path*.

    *mounts* is the text of /proc/self/mounts. Raises FileExistsError when *path* exists.
    """
    if not is_remote(file_system(path, mounts)) or not os.access(memory, os.W_OK):
        return path
    folder = memory / f"ddiag-{os.geteuid()}" / path.parents[2].name / path.parent.name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.parents[1].stat().st_uid != os.geteuid():
        return path  # somebody else's folder of that name
    there = folder / path.name
    path.symlink_to(there)
    return there


def file_system(path: Path, mounts: str | None = None) -> str:
    """The type of the file system that holds *path*; '' when the system does not say."""
    try:
        text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace") if mounts is None else mounts
    except OSError:
        return ""
    wanted = os.path.realpath(path.parent)
    best, found = "", ""
    for line in text.splitlines():
        _device, point, kind, *_ = line.split(" ")
        point = point.encode("latin-1", "replace").decode("unicode_escape")
        # A later mount on the same point hides an earlier one.
        if (wanted == point or wanted.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, found = point, kind
    return found


def is_remote(kind: str) -> bool:
    return kind in _NETWORK or kind.split(".", 1)[0] == _USER_SPACE


def settle(run: Path, *, pid: int | None = None) -> int:
    """Replace the links this node's rings left in *run* by the files; how many.

    With *pid* only those of that process. Files of other nodes are left alone, and so is what cannot be copied.
    """
    links = [link for link in (run / RANKS).glob("a*/*.ring") if link.is_symlink() and link.exists()]
    return sum(_settle(link) for link in links if pid is None or f"-{pid}." in link.name)


def _settle(link: Path) -> bool:
    there = link.readlink()
    beside = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        shutil.copyfile(there, beside)
        beside.replace(link)
    except OSError:
        beside.unlink(missing_ok=True)
        return False
    there.unlink(missing_ok=True)
    _remove_empty(there.parent)
    _remove_empty(there.parent.parent)
    return True


def _remove_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
