"""The report in a real browser: what people see, press, print and read without scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddiag import api
from ddiag.reporters.html import HtmlReporter
from tests.browser.conftest import Open, Opened
from tests.report_cases import late_rank_case
from tests.shared import shared_data

LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"

pytestmark = pytest.mark.browser

SIDEWAYS = """() => [...document.querySelectorAll('main *')].filter(e =>
    !e.closest('.table-box, svg, .plot, .visually-hidden') && e.getClientRects().length
    && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 90))"""


@pytest.mark.parametrize("name", ["healthy", "late rank", "input bound", "hostile text"])
def test_it_opens_without_complaint_or_network_and_never_scrolls_sideways(open_report: Open, name: str) -> None:
    report = open_report(name)
    for width in (1280, 390):
        report.page.set_viewport_size({"width": width, "height": 800})
        report.see_everything()
        assert report.page.evaluate("document.documentElement.scrollWidth") <= width
        assert report.page.evaluate(SIDEWAYS) == []
    assert report.complaints == []
    assert [url for url in report.requests if not url.startswith(("file:", "data:"))] == []
    assert report.page.evaluate("window.hacked") is None


def test_every_finding_of_the_json_is_seen(open_report: Open) -> None:
    report = open_report()
    report.see_everything()
    for finding in late_rank_case().diagnosis.to_dict()["findings"]:
        card = report.page.locator(f"#{finding['rule']}")
        assert card.is_visible()
        words = card.inner_text()
        assert finding["title"][1:] in words
        assert finding["verify"].replace("`", "") in words
        for fix in finding["fix"]:
            assert fix.replace("`", "") in words
        for item in finding["evidence"]:
            assert item["label"][1:] in words


def test_a_link_to_a_folded_finding_unfolds_it(open_report: Open) -> None:
    assert not open_report().page.locator("#DD402").is_visible()
    there = open_report(anchor="#DD402").page.locator("#DD402")
    there.wait_for(state="visible")
    assert there.bounding_box()["y"] < 800


def test_a_healthy_run_fits_one_screen(open_report: Open) -> None:
    report = open_report("healthy")
    height = report.page.evaluate("document.documentElement.scrollHeight")
    assert height <= 1000
    assert report.page.evaluate("ddiag.plots.drawn") == 0


def test_the_contents_lead_into_the_folded_measurements(open_report: Open) -> None:
    report = open_report("healthy")
    report.page.click('.contents a[href="#kernels"]')
    report.until("ddiag.plots.drawn > 0")
    assert report.page.locator("#kernel-classes .plot svg").first.is_visible()


def _column(report: Any, table: str, index: int) -> list[str]:
    return report.page.locator(f"#{table} tbody tr:not(.out) td:nth-child({index})").all_inner_texts()  # type: ignore[no-any-return]


def test_tables_sort_both_ways_by_number_and_filter(open_report: Open) -> None:
    report = open_report()
    head = report.page.locator("#late-ranks thead th").nth(0)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert _column(report, "late-ranks", 1) == list("76543210")
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert _column(report, "late-ranks", 1) == list("01234567")
    assert "Sorted by Rank" in report.page.locator("#announce").inner_text()

    report.page.locator("#kernel-classes details summary").click()
    report.page.locator("#kernel-classes-data thead th").nth(1).locator("button").click()
    numbers = [float(text) for text in _column(report, "kernel-classes-data", 2)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 100 > 10 > numbers[-1]

    report.page.locator("#heat-map details summary").click()
    report.page.get_by_label("Filter Rank and step, longest first").fill("199")
    assert 0 < len(_column(report, "heat-map-data", 1)) < 40
    assert set(_column(report, "heat-map-data", 1)) == {"7"}
    assert "of 40 rows" in report.page.locator(".table-filter:has(#heat-map-data-filter) span").inner_text()


def test_culprit_chips_and_switches_change_charts_and_tables(open_report: Open) -> None:
    report = open_report()
    report.see_everything()
    chip = report.page.locator("#DD502 .chip", has_text="rank 7").first
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert _column(report, "late-ranks", 1) == ["7"]
    opacity = report.page.evaluate("document.querySelector('#rank-bars .plot').data[0].marker.opacity")
    assert sorted(opacity) == [0.22] * 7 + [1]
    assert len(report.page.evaluate("document.querySelector('#heat-map .plot').layout.shapes")) == 1
    assert "rank 7 only" in report.page.locator("#filter-bar").inner_text()
    report.page.locator("#filter-clear").click()
    assert len(_column(report, "late-ranks", 1)) == 8
    assert not report.page.locator("#filter-bar").is_visible()

    report.page.locator("#DD502 .chip", has_text="host node-b").first.click()
    assert sorted(_column(report, "late-ranks", 1)) == ["4", "5", "6", "7"]

    order = "document.querySelector('#rank-bars .plot').layout.yaxis.categoryarray.map(s => s.slice(0, 6))"
    assert report.page.evaluate(order)[0] == "rank 7"
    report.page.locator('.switch[data-chart="rank-bars"] button', has_text="By rank").click()
    assert report.page.evaluate(order) == [f"rank {k}" for k in range(8)]

    value = "document.querySelector('#heat-map .plot').data[0].z[7][0]"
    assert report.page.evaluate(value) == pytest.approx(199, abs=1)
    report.page.locator('.switch[data-chart="heat-map"] button', has_text="Waiting").click()
    assert report.page.evaluate(value) == 1


def _ink(report: Any) -> int:
    """How many pixels of the timeline are drawn in colour."""
    return report.page.evaluate(  # type: ignore[no-any-return]
        """() => { const c = document.getElementById('timeline-canvas');
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
            for (let i = 0; i < d.length; i += 4) {
                const rgb = [d[i], d[i + 1], d[i + 2]];
                if (Math.max(...rgb) - Math.min(...rgb) > 60) n++;
            }
            return n; }"""
    )


def test_the_timeline_zooms_by_button_and_key(open_report: Open) -> None:
    report = open_report()
    canvas = report.page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    report.page.wait_for_timeout(100)
    whole = _ink(report)
    assert whole > 10_000
    canvas.focus()
    for _ in range(5):
        report.page.keyboard.press("+")
    report.page.wait_for_timeout(100)
    assert abs(_ink(report) - whole) > 500
    report.page.keyboard.press("0")
    report.page.wait_for_timeout(100)
    assert _ink(report) == whole


def test_the_timeline_names_what_is_under_the_pointer(open_report: Open) -> None:
    report = open_report()
    canvas = report.page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    report.page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + 33)
    tip = report.page.locator("#timeline-tip").inner_text()
    assert "rank 0 · node-a" in tip
    assert "ampere_bf16_gemm" in tip
    assert " ms from " in tip


def test_the_copy_button_gives_the_command(open_report: Open) -> None:
    report = open_report()
    report.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    report.page.locator("#first .command .copy").click()
    report.page.locator("#first .command .copy", has_text="Copied").wait_for()
    assert report.page.evaluate("navigator.clipboard.readText()") == "ddiag analyze NEW_TRACES"


def test_everything_can_be_reached_by_keyboard(open_report: Open) -> None:
    report = open_report()
    report.page.keyboard.press("Tab")
    assert report.page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    reached, bare = set(), set()
    for _ in range(160):
        report.page.keyboard.press("Tab")
        name, outline = report.page.evaluate(
            "(e => [e.className || e.id || e.tagName, getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        if name == "BODY":
            break
        reached.add(name)
        bare |= {name} if outline == "none" else set()
    assert {"copy", "chip", "timeline-canvas", "table-box"} <= reached
    assert bare == set()


def test_landmarks_and_names_for_screen_readers(open_report: Open) -> None:
    report = open_report()
    for role in ("main", "navigation", "banner", "contentinfo"):
        expected = 1 if role in ("main", "navigation") else 0  # header and footer belong to main here
        assert report.page.get_by_role(role).count() == expected
    nameless = report.page.evaluate(
        """() => [...document.querySelectorAll('button, input, canvas, [role=img], [role=region], nav')].filter(e =>
            !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length))).length"""
    )
    assert nameless == 0
    assert report.page.evaluate(
        "[...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent.trim())"
    )


def test_dark_follows_the_system_also_while_open(open_report: Open) -> None:
    report = open_report(dark=True)
    report.see_everything()
    ground = "getComputedStyle(document.body).backgroundColor"
    bar = "document.querySelector('#waterfall .plot').data[0].marker.color"
    assert report.page.evaluate(ground) == "rgb(22, 26, 31)"
    assert report.page.evaluate(bar) == "#5a9be0"
    report.page.emulate_media(color_scheme="light")
    report.until(f"{bar} === '#2f6db5'")
    assert report.page.evaluate(ground) == "rgb(255, 255, 255)"


CONTRAST = """() => {
  const part = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const bad = new Set();
  for (const e of document.querySelectorAll('main *, nav *')) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || e.closest('svg, canvas, .visually-hidden')) continue;
    const a = light(rgb(getComputedStyle(e).color)), b = light(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(`${e.className || e.tagName} ${ratio.toFixed(2)}`);
  }
  return [...bad]; }"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast(open_report: Open, dark: bool) -> None:
    assert open_report(dark=dark).page.evaluate(CONTRAST) == []


def test_without_scripts_everything_is_there_and_charts_show_their_data(open_report: Open) -> None:
    report = open_report(scripts=False)
    text = report.page.inner_text("main")
    for finding in late_rank_case().diagnosis.findings[:1]:
        assert finding.title[1:] in text
        assert finding.verify.replace("`", "") in text
    tables = report.page.locator(".data-of table")
    assert tables.count() == 8
    assert all(tables.nth(k).is_visible() for k in range(8))
    for dead in (".plot", ".copy", ".switch", "canvas"):
        assert report.page.locator(dead).first.is_visible() is False


def test_it_prints_light_with_its_charts_and_without_controls(open_report: Open, tmp_path: Path) -> None:
    report = open_report(dark=True)
    pdf = tmp_path / "report.pdf"
    report.page.pdf(path=str(pdf), format="A4")
    assert pdf.stat().st_size > 50_000
    report.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    report.page.emulate_media(media="print")
    assert report.page.evaluate("ddiag.plots.drawn === ddiag.plots.wanted")
    assert report.page.evaluate("document.querySelector('#waterfall .plot').data[0].marker.color") == "#2f6db5"
    assert report.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for gone in (".contents", ".copy", ".switch", ".data-of"):
        assert report.page.locator(gone).first.is_visible() is False
    assert report.complaints == []


@pytest.mark.slow
def test_eight_ranks_are_small_and_open_fast(open_report: Open, report_files: Callable[[str], Path]) -> None:
    assert report_files("late rank").stat().st_size < 8e6
    fastest = min(open_report().page.evaluate(LOADED) for _ in range(3))
    assert fastest < 2000


@pytest.mark.slow
def test_a_thousand_ranks_still_open(open_report: Open) -> None:
    report = open_report("thousand ranks")
    assert report.page.evaluate(LOADED) < 4000
    report.see_everything()
    assert report.complaints == []
    assert report.page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.slow
def test_the_report_of_a_real_eight_rank_job(browser: Any, tmp_path: Path) -> None:
    """The acceptance figures: under 8 MB, open in under 2 s, no complaint, every finding of the JSON on the page."""
    run = api.load([str(shared_data("facebookresearch+param", "dlrm_kineto_8rank"))])
    examined = api.examine(run, api.rules_for())
    path = tmp_path / "dlrm.html"
    path.write_text(HtmlReporter().render(examined.diagnosis, examined.signals, examined.run), encoding="utf-8")
    assert path.stat().st_size < 8e6
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    report = Opened(page, path.as_uri())
    assert page.evaluate(LOADED) < 2000
    report.see_everything()
    findings = examined.diagnosis.to_dict()["findings"]
    assert findings
    for finding in findings:
        assert page.locator(f'article[id^="{finding["rule"]}"]', has_text=finding["title"][1:]).first.is_visible()
    assert page.locator("#timeline-canvas").is_visible()
    assert report.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.context.close()
