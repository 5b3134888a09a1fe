"""Batches sent to the device by Lightning, accelerate and the Trainer, each through one function.

A plain ``batch.to(device)`` is not seen: standing in for ``Tensor.to`` would touch every conversion there is. Scripts
can say ``with recording.phase("h2d")``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddiag.capture import recorder
from ddiag.capture.door import around
from ddiag.capture.hooks.spans import Token, leave
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Phase

_SENDERS = {
    "accelerate.utils.operations": ("send_to_device", ("accelerate.utils", "accelerate.data_loader")),
    "lightning.fabric.utilities.apply_func": ("move_data_to_device", ("lightning.fabric.utilities",)),
    "lightning_fabric.utilities.apply_func": ("move_data_to_device", ("lightning_fabric.utilities",)),
}
"""module: (function of (data, device, …), modules that import it by name)"""


def install(module: ModuleType, patches: Patches) -> None:
    name, also = _SENDERS[module.__name__]
    patches.replace_function(module, name, lambda original: around(original, name, _before, leave), also=also)


def _before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token | None:
    active = recorder.current
    device = args[1] if len(args) > 1 else kwargs.get("device")
    if active is None or active.in_phase(Phase.H2D) or str(device).startswith("cpu"):
        return None
    return active, active.enter(Phase.H2D)
