"""``ddiag.LightningCallback()``: records a Lightning Trainer's fit (``lightning`` or ``pytorch_lightning``)."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ddiag.capture.recording import Recording


def _callback_class() -> type[Any]:
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            base: type[Any] = importlib.import_module(package).Callback
        except ModuleNotFoundError:
            continue
        return base
    raise ModuleNotFoundError("ddiag.LightningCallback needs the package lightning or pytorch_lightning")


class LightningCallback(_callback_class()):  # type: ignore[misc]
    """Pass it to ``Trainer(callbacks=[…])``. Under ``ddiag run`` it changes nothing."""

    def __init__(self, out: str | os.PathLike[str] = "ddiag-runs", *, name: str | None = None) -> None:
        super().__init__()
        self.recording = Recording(out, name)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The process group exists by now."""
        if stage == "fit":
            self.recording.start()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.recording.stop()
