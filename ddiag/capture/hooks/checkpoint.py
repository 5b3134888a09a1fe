"""Checkpoints: ``torch.save``, distributed checkpoints and safetensors."""

from __future__ import annotations

from types import ModuleType

from ddiag.capture.hooks.spans import as_phase
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Phase

_WRITERS = {
    "torch.serialization": (("save",), ("torch",)),
    "torch.distributed.checkpoint.state_dict_saver": (("save", "async_save"), ("torch.distributed.checkpoint",)),
    "safetensors.torch": (("save_file", "save_model"), ()),
}
"""module: (functions, modules that offer them as well)"""


def install(module: ModuleType, patches: Patches) -> None:
    names, also = _WRITERS[module.__name__]
    for name in names:
        patches.replace_function(module, name, as_phase(Phase.CHECKPOINT, f"{module.__name__}.{name}"), also=also)
