"""Headless Chromium for reports on disk; tests skip, saying why, where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report_cases import Case, healthy_case, hostile_case, input_bound_case, late_rank_case, thousand_rank_case

ARGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("DDIAG_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is on PATH and DDIAG_CHROMIUM is not set")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(ARGS))
        yield running
        running.close()


class Opened:
    """A report in a tab, with everything the browser complained about or asked for."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)

    def see_everything(self) -> None:
        """Unfold, scroll through and wait until every chart is drawn."""
        self.page.evaluate(
            "document.querySelectorAll('details.evidence, .consequences').forEach(d => { d.open = true; })"
        )
        height = self.page.evaluate("document.documentElement.scrollHeight")
        for y in range(0, height + 800, 800):
            self.page.evaluate(f"scrollTo(0, {y})")
            self.page.wait_for_timeout(20)
        self.until("ddiag.plots.drawn === ddiag.plots.wanted")
        self.page.evaluate("scrollTo(0, 0)")

    def until(self, condition: str) -> None:
        """Wait for a JavaScript condition; playwright's own waiting needs eval, which the page forbids."""
        for _ in range(200):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never became true: {condition}")


Open = Callable[..., Opened]


CASES: dict[str, Callable[[], Case]] = {
    "healthy": healthy_case,
    "late rank": late_rank_case,
    "input bound": input_bound_case,
    "hostile text": hostile_case,
    "thousand ranks": thousand_rank_case,
}


@pytest.fixture(scope="session")
def report_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The report of a case as a file, rendered once."""
    folder = tmp_path_factory.mktemp("reports")

    def file_of(name: str) -> Path:
        path = folder / f"{name.replace(' ', '-')}.html"
        if not path.exists():
            path.write_text(CASES[name]().html(), encoding="utf-8", errors="replace")
        return path

    return file_of


@pytest.fixture
def open_report(browser: Any, report_files: Callable[[str], Path]) -> Iterator[Open]:
    contexts: list[Any] = []

    def opened(
        name: str = "late rank", *, width: int = 1280, dark: bool = False, scripts: bool = True, anchor: str = ""
    ) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 844 if width < 700 else 800},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        contexts.append(context)
        return Opened(context.new_page(), report_files(name).as_uri() + anchor)

    yield opened
    for context in contexts:
        context.close()
