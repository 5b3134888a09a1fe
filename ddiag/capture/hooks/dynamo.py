"""``torch.compile`` must not look into the recorder.

TorchDynamo takes the stand-ins of ``door.py`` into its graphs, where they vanish (``door.compiling`` is a constant to
it). What they call is ours to run, never its to trace; and a stand-in that Dynamo meets on its own, after a break in
the user's graph, is simply run.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from ddiag.capture import door
from ddiag.capture.patches import Patches

_ROOM = Path(door.__file__).parent


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``torch._dynamo.trace_rules``."""
    inlined = getattr(module, "BUILTIN_INLINE_WHEN_CALLED", None)
    if isinstance(inlined, set):
        inlined.add(door.__file__)
        patches.undo_with(lambda: inlined.discard(door.__file__))
        ours = [f"{_ROOM}/"]
    else:
        ours = [str(path) for path in _ROOM.iterdir() if path.name != Path(door.__file__).name]
    for path in ours:
        module.SKIP_DIRS.append(path)
    module._recompile_re()

    def forget() -> None:
        for path in ours:
            module.SKIP_DIRS.remove(path)
        module._recompile_re()

    patches.undo_with(forget)
