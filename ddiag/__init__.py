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

    __version__: str

__all__ = ["__version__", "diagnose", "load_run"]


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
    raise AttributeError(f"module 'ddiag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
