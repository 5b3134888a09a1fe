"""Where the real traces lie that some tests read: beside the checkout, never inside it."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"


def shared_data(*parts: str) -> Path:
    """Return ``../shared/data/<parts>``; skip the calling test, saying why, when it is not there."""
    path = SHARED.joinpath("data", *parts)
    if not SHARED.is_dir():
        pytest.skip("../shared is not there")
    if not path.exists():
        pytest.skip(f"../shared/data/{'/'.join(parts)} is not there")
    return path


def hta_python() -> Path:
    """Return the interpreter that has Holistic Trace Analysis beside ddiag; skip the calling test without it."""
    path = REPOSITORY / ".venv-hta" / "bin" / "python"
    if not path.exists():
        pytest.skip(".venv-hta is not there (make test builds it)")
    return path


def other_python(name: str) -> Path:
    """Return the interpreter of the virtual environment *name* in the checkout; skip the calling test without it."""
    path = REPOSITORY / name / "bin" / "python"
    if not path.exists():
        pytest.skip(f"{name} is not there")
    return path
