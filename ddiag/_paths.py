"""Where ``rules/`` and ``reports/`` lie: at the top of a checkout, inside the package in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _data_folder(name: str) -> Path:
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def rules_folder() -> Path:
    """The folder of the built-in rules (``<family>/ddNNN_<name>.py``)."""
    return _data_folder("rules")


def reports_folder() -> Path:
    """The folder of the jinja2 templates and assets."""
    return _data_folder("reports")
