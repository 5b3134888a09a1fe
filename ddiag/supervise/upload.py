"""``--out URL``: a run is recorded on the node's own disk, and copied when it has ended.

The copy is made by a process of its own (:func:`copy`), so that no storage client is ever loaded into the supervisor.
"""

from __future__ import annotations

from pathlib import Path

from ddiag.errors import UsageError
from ddiag.schema.folder import UPLOAD_LOG
from ddiag.supervise.side_process import Limits, run_aside

LIMIT_S = 900.0
_COPY = "from ddiag.supervise.upload import copy; copy(*sys.argv[1:])"


def upload(run: Path, url: str, limits: Limits) -> str:
    """Copy *run* below *url*; why it failed, empty when it did not."""
    return run_aside(_COPY, [str(run), url], run / UPLOAD_LOG, limits)


def check_url(url: str) -> None:
    """Raise UsageError when nothing here can write to *url*."""
    import fsspec

    protocol = url.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise UsageError(f"--out {url}: {error}") from error


def copy(run: str, url: str) -> None:
    """Every file of the folder *run* to ``url/<its name>/``."""
    import fsspec

    folder = Path(run)
    system, root = fsspec.core.url_to_fs(url)
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if path.is_file() and path.name != UPLOAD_LOG and not any(part.startswith(".") for part in inner.parts):
            target = f"{root.rstrip('/')}/{folder.name}/{inner.as_posix()}"
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            system.put_file(str(path), target)
