"""ddiag finds what slows down or stops distributed training.

Importing it is cheap: the names below are loaded on first use.

>>> import ddiag
>>> run = ddiag.load_run(["traces/"])
>>> print(ddiag.diagnose(run).verdict.headline)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddiag.api import diagnose
    from ddiag.api import load as load_run
    from ddiag.capture.lightning import LightningCallback
    from ddiag.capture.recording import record
    from ddiag.capture.trainer import TrainerCallback

    __version__: str

__all__ = ["LightningCallback", "TrainerCallback", "__version__", "diagnose", "load_run", "record"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("ddiag")
        except PackageNotFoundError:
            return "0+unknown"
    if name in ("diagnose", "load_run"):
        from ddiag import api

        return api.diagnose if name == "diagnose" else api.load
    if name == "record":
        from ddiag.capture.recording import record

        return record
    if name == "LightningCallback":
        from ddiag.capture.lightning import LightningCallback

        return LightningCallback
    if name == "TrainerCallback":
        from ddiag.capture.trainer import TrainerCallback

        return TrainerCallback
    raise AttributeError(f"module 'ddiag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
