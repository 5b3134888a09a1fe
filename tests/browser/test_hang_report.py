"""The section on a hang in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddiag import api
from ddiag.reporters.html import HtmlReporter
from tests.browser.conftest import Opened
from tests.browser.test_report import SIDEWAYS
from tests.captures import late, rank, write

pytestmark = pytest.mark.browser
EVIL = "<img src=x onerror='window.hacked=1'> (/app/<script>window.hacked=1</script>.py:7)"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hang")
    long = f"load (/app/{'very' * 40}/{'long' * 30}.py:7)"
    everybody = tuple(range(64))
    ranks = [rank(number) for number in everybody if number != 5]
    for one in ranks:
        one["groups"][0]["ranks"] = list(everybody)
    culprit = late(5, EVIL, long, "<module> (/app/train.py:30)")
    culprit["groups"][0]["ranks"] = list(everybody)
    write(folder, *ranks, culprit, world_size=64)
    found = api.examine(api.load([str(folder / "hang")]), api.rules_for())
    path = folder / "report.html"
    path.write_text(HtmlReporter().render(found.diagnosis, found.signals, found.run), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield Opened(context.new_page(), report.as_uri())
    context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_without_complaint_and_never_scrolls_sideways(opened: Opened, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 800})
    opened.see_everything()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate(SIDEWAYS) == []
    assert opened.complaints == []
    assert opened.page.evaluate("window.hacked") is None


def test_every_rank_has_a_square_and_the_culprit_s_is_marked(opened: Opened) -> None:
    squares = opened.page.locator(".hang-blocks .hang-cell")
    assert squares.count() == 64
    marked = opened.page.locator(".hang-blocks .hang-cell.culprit")
    assert marked.count() == 1
    assert marked.get_attribute("data-rank") == "5"


def test_the_stack_of_the_culprit_stands_first(opened: Opened) -> None:
    first = opened.page.locator(".hang-stack").first
    assert "rank 5" in first.inner_text()
    assert "train.py:30" in first.inner_text()


def test_the_call_that_is_waited_in_tells_who_has_not_issued_it(opened: Opened) -> None:
    lines = opened.page.locator(".hang-calls tbody tr")
    assert lines.count() == 2
    assert "not issued" in lines.nth(0).inner_text()
    assert "waits" in lines.nth(1).inner_text()
