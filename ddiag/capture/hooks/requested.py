"""What the user asked of the recorder beyond recording: a torch.profiler window, NVTX ranges."""

from __future__ import annotations

from ddiag.capture.recorder import Recorder
from ddiag.errors import InputError
from ddiag.schema.folder import read_manifest


def activated(active: Recorder) -> None:
    from ddiag.capture.hooks import profile_window

    run = active.files.folder.parents[1]
    profile_window.watch(active, run)
    try:
        options = read_manifest(run).options
    except InputError:
        return  # recording without a supervisor, which has no options
    if options.get("nvtx"):
        from ddiag.capture.hooks import nvtx

        nvtx.mark_phases(active)
