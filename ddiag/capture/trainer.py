"""``ddiag.TrainerCallback()``: records a Hugging Face ``transformers.Trainer``."""

from __future__ import annotations

import os
from typing import Any

import transformers

from ddiag.capture.recording import Recording


class TrainerCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Pass it to ``Trainer(callbacks=[…])``. Under ``ddiag run`` it changes nothing."""

    def __init__(self, out: str | os.PathLike[str] = "ddiag-runs", *, name: str | None = None) -> None:
        super().__init__()
        self.recording = Recording(out, name)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The process group exists by now."""
        self.recording.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.recording.stop()
