"""The HTML report as text: structure, completeness, escaping, and what is left out."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from ddiag.model.run import Coverage, Run
from ddiag.model.signals import Signals
from ddiag.reporters.html import HtmlReporter
from ddiag.rulekit.finding import Role, Severity
from tests.factories import make_signals
from tests.report_cases import (
    HOSTILE,
    Case,
    consequence,
    healthy_case,
    hostile_case,
    input_bound_case,
    late_rank_case,
    make_diagnosis,
    make_finding,
    thousand_rank_case,
)

VOID = {"meta", "link", "br", "img", "input", "hr", "use", "path", "circle", "rect"}


class Outline(HTMLParser):
    """Headings, ids, links and text of a page; complains about elements that are not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.text = ""
        self.scripts: dict[str, str] = {}
        self._script = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes += list(given.items())
        self.ids += [given["id"]] if "id" in given else []
        self.hrefs += [given["href"]] if tag == "a" else []
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append(f"{tag} ")
        if tag == "script":
            self._script = given.get("id", f"script{len(self.scripts)}")
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts[self._script] += data
        elif inside != "style":
            self.text += data
            if any(tag in ("h1", "h2", "h3", "h4") for tag in self.open):
                self.headings[-1] += data


@pytest.fixture(scope="module")
def late() -> Outline:
    return Outline(late_rank_case().html())


def test_the_sections_come_in_reading_order(late: Outline) -> None:
    assert [re.sub(r"\s+", " ", h).strip() for h in late.headings if h.startswith(("h1", "h2"))] == [
        "h1 Rank 7 arrives last because its input is late; the others wait 58.0 ms per step (29%).",
        "h2 Do this first",
        "h2 Findings 2",
        "h2 Where the time goes",
        "h2 Ranks × steps",
        "h2 Timeline of the worst step",
        "h2 Communication",
        "h2 Memory",
        "h2 Kernels",
        "h2 Input and host",
        "h2 Devices and links",
        "h2 What was not measured, and how to get it 1",
        "h2 Coverage and method",
    ]


def test_every_link_of_the_page_leads_somewhere_and_every_id_is_unique(late: Outline) -> None:
    inner = [href[1:] for href in late.hrefs if href.startswith("#")]
    assert {"DD502", "DD402", "first", "coverage", "communication"} <= set(inner)
    assert set(inner) <= set(late.ids)
    assert len(late.ids) == len(set(late.ids))


def test_heading_levels_are_never_skipped(late: Outline) -> None:
    levels = [int(heading[1]) for heading in late.headings]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_element_is_closed(late: Outline) -> None:
    assert late.open == []


def test_everything_a_finding_says_is_on_the_page(late: Outline) -> None:
    for finding in late_rank_case().diagnosis.findings:
        said = [finding.title[1:], *finding.fix, finding.verify, finding.why[1:], finding.doubt[1:]]
        for text in said:
            assert text.replace("`", "") in late.text
        for item in finding.evidence:
            assert item.label[1:] in late.text
            assert item.source in late.text
    for number in ("195 of 200", "60.1", "29 %", "55.7"):
        assert number in late.text


def test_a_consequence_is_folded_under_its_cause(late: Outline) -> None:
    html = late_rank_case().html()
    card = html[html.index('id="DD502"') : html.index('id="step-time"')]
    assert "1 consequence of this cause: DD402" in card
    assert html.index('class="consequences"') < html.index('id="DD402"')


def test_a_consequence_without_its_cause_stands_by_itself() -> None:
    html = late_rank_case((consequence(explained_by="DD999"),)).html()
    assert 'class="consequences"' not in html
    assert 'id="DD402"' in html


def test_two_findings_of_one_rule_have_anchors_of_their_own() -> None:
    page = Outline(late_rank_case((make_finding(), make_finding(title="rank 3 as well"))).html())
    assert {"DD502", "DD502-2"} <= set(page.ids)


def test_consequences_of_a_consequence_are_not_lost() -> None:
    chain = (make_finding(), consequence(), consequence(rule="DD405", title="tiny messages", explained_by="DD402"))
    page = Outline(late_rank_case(chain).html())
    assert {"DD502", "DD402", "DD405"} <= set(page.ids)
    assert page.ids.count("DD405") == 1


def test_the_page_loads_nothing(late: Outline) -> None:
    assert "link" in late.tags  # the empty icon, so that the browser does not ask for one
    sources = [value for name, value in late.attributes if name in ("src", "srcset", "data", "action")]
    assert sources == []
    assert [v for n, v in late.attributes if n == "rel" and v != "noreferrer"] == ["icon"]


def test_a_healthy_run_shows_what_was_checked_and_folds_the_measurements() -> None:
    html = healthy_case().html()
    page = Outline(html)
    assert "What was checked" in page.text
    assert "Do this first" not in page.text
    assert "Findings" not in [h[3:] for h in page.headings]
    assert html.index('<details class="evidence" id="evidence">') < html.index('id="step-time"')
    for rule in ("DD101", "DD502", "DD1001"):
        assert rule in page.text
    assert "Offload" in page.text
    assert page.text.index("Offload") < page.text.index("DD1001")


def test_sections_without_evidence_are_not_shown() -> None:
    signals = Signals({kind: found for kind, found in make_signals().families.items() if kind.__name__ == "JobFacts"})
    page = Outline(Case(make_diagnosis(), signals, Run({})).html())
    assert [h.split(maxsplit=1)[1].strip() for h in page.headings if h.startswith("h2")] == [
        "What was checked 7 rules decided, 1 could not",
        "What was not measured, and how to get it 1",
        "Coverage and method",
    ]
    assert "plotly-source" not in page.scripts


def test_nothing_at_all_is_still_a_page() -> None:
    page = Outline(Case(make_diagnosis(coverage=Coverage(), abstentions=()), Signals(), Run({})).html())
    assert "0 files read" in page.text


def test_plotly_is_inlined_exactly_once() -> None:
    page = Outline(late_rank_case().html())
    assert sum(len(text) > 1_000_000 for text in page.scripts.values()) == 1
    assert len(page.scripts["plotly-source"]) > 1_000_000


def test_every_chart_says_how_to_read_it_and_carries_its_data_as_a_table(late: Outline) -> None:
    html = late_rank_case().html()
    figures = re.findall(r'<figure class="chart".*?</figure>', html, flags=re.DOTALL)
    assert len(figures) == 8
    for figure in figures:
        assert "How to read this." in figure
        assert '<span class="unit">' in figure
        assert "<table" in figure
        assert "<tbody>\n<tr" in figure
        assert 'role="img" aria-label="' in figure


def test_a_thousand_ranks_give_ten_worst_and_quantiles_never_a_thousand_bars() -> None:
    html = thousand_rank_case(steps=6).html()
    page = Outline(html)
    figure = json.loads(page.scripts["fig-rank-bars"])
    assert max(len(trace["y"]) for trace in figure["data"]) == 12
    assert "rank 613 · node-076" in figure["data"][0]["y"]
    assert "12 of 1,024 ranks" in page.text
    assert "median 145 ms" in page.text
    assert len(json.loads(page.scripts["fig-heat-map"])["data"][0]["z"]) == 256
    assert len(re.findall("<tr", html)) < 1200
    for found in re.findall(r'data-total="(\d+)"[^>]*>\s*<caption>(.*?)</caption>', html, flags=re.DOTALL):
        if int(found[0]) > 300:
            assert f"of {int(found[0]):,}" in found[1]


def test_victims_and_culprits_are_cut_with_their_number() -> None:
    finding = make_finding(culprits=make_finding().culprits.__class__(ranks=tuple(range(40))))
    page = Outline(late_rank_case((finding,)).html())
    assert "12 of 40" in page.text


@pytest.fixture(scope="module")
def hostile() -> Outline:
    return Outline(hostile_case().html())


def test_hostile_text_is_shown_as_text(hostile: Outline) -> None:
    shown = re.sub(r"[\x07\s]+", " ", HOSTILE)[:60]
    assert re.sub(r"\s+", " ", hostile.text).count(shown) >= 20
    assert "img" not in hostile.tags
    assert not [name for name, _ in hostile.attributes if name.startswith("on")]
    assert "{{ 7*7 }}" in hostile.text
    assert hostile.open == []


def test_hostile_text_cannot_leave_a_script(hostile: Outline) -> None:
    scripts = {name: text for name, text in hostile.scripts.items() if name.startswith(("fig-", "page-data"))}
    assert len(scripts) >= 7
    for text in scripts.values():
        assert json.loads(text)
        assert not set("<>&\u2028\u2029") & set(text)
    names = json.loads(scripts["page-data"])["timeline"]["names"]
    assert any(name.startswith("</script><script>hacked") for name in names)


def test_hostile_links_are_not_links(hostile: Outline) -> None:
    assert all(href.startswith(("#", "https://")) for href in hostile.hrefs)
    assert "javascript:alert(1)" in hostile.text


def test_labels_of_figures_cannot_carry_markup(hostile: Outline) -> None:
    """plotly reads a little HTML in labels."""
    for name in ("fig-rank-bars", "fig-heat-map", "fig-bandwidth"):
        figure = json.loads(hostile.scripts[name])
        texts = [str(v) for trace in figure["data"] for v in [*trace.get("y", []), *(trace.get("text") or [])]]
        assert not any("<img" in text or "<script" in text for text in texts)


def test_control_and_bidirectional_characters_do_not_reach_the_page(hostile: Outline) -> None:
    page = Outline(late_rank_case((make_finding(title="rank \u202e7\x00\x1b[31m"),)).html())
    assert "\x07" not in hostile.text
    assert not set("\u202e\x00\x1b") & set(page.text)


def test_rendering_is_pure() -> None:
    case = late_rank_case()
    assert case.html() == case.html()
    other = HtmlReporter(title="Run 42").render(case.diagnosis, case.signals, case.run)
    assert "<title>Run 42</title>" in other
    assert "written" not in Outline(other).text


def test_missing_ranks_and_refused_files_are_named() -> None:
    coverage = Coverage(ranks_seen=(0, 1), ranks_expected=(0, 1, 2, 3), unreadable=(("c.json", "no JSON"),))
    page = Outline(Case(make_diagnosis(coverage=coverage), make_signals(), Run({})).html())
    assert "No evidence from ranks 2 and 3" in page.text
    assert "no JSON" in page.text


def test_one_rank_shows_its_steps_instead_of_ranks() -> None:
    page = Outline(input_bound_case().html())
    assert "fig-step-bars" in page.scripts
    assert not {"fig-rank-bars", "fig-heat-map"} & set(page.scripts)


def test_severity_is_a_word_and_a_shape() -> None:
    for severity in Severity:
        html = late_rank_case((make_finding(severity=severity, role=Role.CAUSE),)).html()
        assert f'<span class="severity {severity.value}">' in html
        assert f'href="#shape-{severity.value}"/></svg>{severity.value}</span>' in html
