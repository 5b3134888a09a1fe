"""The diagnosis as one self-contained HTML file: no network, no file beside it, complete without JavaScript."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2

from ddiag._paths import reports_folder
from ddiag.model.run import Run
from ddiag.model.signals import Signals
from ddiag.plots.chart import plotly_js
from ddiag.plots.palette import dark_of
from ddiag.plots.timeline import payload
from ddiag.reporters import html_text
from ddiag.reporters.html_page import Page, build_page
from ddiag.rulekit.diagnosis import Diagnosis

SCRIPTS = ("page.js", "tables.js", "charts.js", "timeline.js", "chips.js")
STYLES = ("tokens.css", "page.css", "parts.css", "hang.css", "print.css")


class HtmlReporter:
    """Renders a diagnosis with its charts and tables.

    *generated_at* is shown as it is given (a reporter has no clock); *title* is the page's title.
    """

    def __init__(self, *, generated_at: str = "", title: str = "") -> None:
        self._generated_at = generated_at
        self._title = title

    def render(self, diagnosis: Diagnosis, signals: Signals, run: Run) -> str:
        """The page as text (UTF-8)."""
        page = build_page(diagnosis, signals, run)
        return _environment().get_template("report.html.j2").render(
            page=page,
            title=self._title or f"ddiag: {page.status}",
            generated_at=self._generated_at,
            styles=[_asset(name) for name in STYLES],
            scripts=[_asset(name) for name in SCRIPTS],
            plotly=plotly_js() if page.charts else "",
            page_data=_page_data(page),
        )  # fmt: skip


def _page_data(page: Page) -> dict[str, object]:
    """What the scripts need besides the figures."""
    return {
        "dark": dark_of(),
        "hosts": {host: list(ranks) for host, ranks in page.ranks_of_host.items()},
        "timeline": payload(page.timeline) if page.timeline is not None else None,
        "switches": {
            chart.id: [option for _, option in chart.switch.options]
            for chart in page.charts
            if chart.switch is not None
        },
    }


@cache
def _asset(name: str) -> str:
    return (_folder() / "assets" / name).read_text(encoding="utf-8")


def _folder() -> Path:
    return reports_folder()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_folder()),
        autoescape=True,
        finalize=html_text.harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(html_text.FILTERS)
    return environment
