"""What holds for every test: no colour or width from the terminal, and `long` tests only when asked for."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output must not depend on the terminal in which the tests happen to run."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out `long` tests unless the marker expression names them."""
    if "long" in (config.getoption("markexpr") or ""):
        return
    unwanted = [item for item in items if item.get_closest_marker("long")]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
