"""What a reader of a recording's report is told of the recording, and where."""

from __future__ import annotations

import dataclasses
import html
import json
import re

import pytest

from ddiag.model.run import Coverage, InputFile, Run
from ddiag.model.signals import StepBudget
from ddiag.reporters.hang_terminal import HangReporter
from ddiag.reporters.html import HtmlReporter
from ddiag.reporters.json import JsonReporter
from ddiag.reporters.markdown import MarkdownReporter
from ddiag.reporters.terminal import TerminalReporter
from ddiag.reporters.words import coverage_lines, recording_words
from ddiag.rulekit import Abstention, Evidence
from tests.factories import make_signals
from tests.unit.reporters.diagnoses import LATE, RECORDED, diagnosed
from tests.unit.rulekit.making import finding

FACTS = "recording took 0.29 % of a step · failed with exit code 3"
TRACED = Coverage(inputs=(InputFile("r0.json", "kineto", 100, rank=0, events=9),))


def _recorded_budget() -> StepBudget:
    budget = make_signals(job_facts={"device_kind": "cpu"}).get(StepBudget)
    assert budget is not None
    return dataclasses.replace(budget, source="recorded", note="", excluded_steps=(0,))


def _page(coverage: Coverage, *, recorded: bool = True) -> str:
    """The visible text of the HTML report."""
    budget = {"step_budget": _recorded_budget()} if recorded else {}
    diagnosis, signals = diagnosed(LATE, coverage=coverage, job_facts={"device_kind": "cpu"}, **budget)
    page = HtmlReporter().render(diagnosis, signals, Run({}, coverage))
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_cost_and_ending_stand_with_the_facts_of_the_job_and_not_among_gaps() -> None:
    diagnosis, signals = diagnosed(LATE, coverage=RECORDED)
    for text in (TerminalReporter(width=200).render(diagnosis, signals), MarkdownReporter().render(diagnosis, signals)):
        facts, gaps = re.split(r"gaps in the evidence", text, flags=re.IGNORECASE)
        assert FACTS in facts
        assert "0.29" not in gaps
        assert "exit code" not in gaps


def test_the_page_has_them_beneath_the_verdict_and_explains_the_cost() -> None:
    page = _page(RECORDED)
    assert FACTS in page.split("Then verify")[0]
    assert "Cost of recording Recording took 0.29 % of a step, as the recorder timed itself: 0.38 of 134 ms" in page


def test_the_call_view_has_them_too() -> None:
    diagnosis, signals = diagnosed(LATE, coverage=RECORDED)
    assert FACTS in HangReporter(width=200).render(diagnosis, signals, Run({}, RECORDED))


def test_a_program_reads_them_as_numbers() -> None:
    coverage = json.loads(JsonReporter().render(diagnosed(coverage=RECORDED)[0]))["coverage"]
    assert coverage["recording_cost"] == {"rank": 1, "share": 0.0029, "ms_per_step": 0.38, "step_ms": 134.0}
    assert coverage["ending"] == "failed with exit code 3"
    traced = json.loads(JsonReporter().render(diagnosed(coverage=TRACED)[0]))["coverage"]
    assert (traced["recording_cost"], traced["ending"]) == (None, "")


def test_more_than_promised_is_said() -> None:
    cost = RECORDED.recording_cost
    assert cost is not None
    assert "more than" not in recording_words(cost)
    assert "more than the 1% it should" in recording_words(dataclasses.replace(cost, share=0.0119))


def test_what_is_odd_about_recordings_is_said_of_ranks_not_of_files() -> None:
    assert coverage_lines(RECORDED) == ["recording of ranks 0 and 1: ended without closing its ring"]


@pytest.mark.parametrize(("recorded", "said", "unsaid"), [
    (True, "the training thread in forward, backward or the optimizer", "the trace has no device activity"),
    (False, "the trace has no device activity", "the training thread in forward"),
])  # fmt: skip
def test_figures_are_explained_as_they_were_measured(recorded: bool, said: str, unsaid: str) -> None:
    page = _page(RECORDED if recorded else TRACED, recorded=recorded)
    assert said in page
    assert unsaid not in page


def test_no_explanation_of_a_recording_speaks_of_traces() -> None:
    method = _page(RECORDED).split("What the numbers mean")[1]
    assert "Step 0: warm-up" in method
    assert not re.search(r"\b(traces?|kernels?|allocator events)\b", method)


def test_reasons_are_no_needs() -> None:
    diagnosis, signals = diagnosed(LATE)
    reasons = (
        Abstention("DD504", ("CPUs are short",), "ddiag run on idle hosts", "uneven work"),
        Abstention("DD303", ("recompute",), "ddiag run --profile-steps 20:24", "recomputed"),
    )
    diagnosis = dataclasses.replace(diagnosis, abstentions=reasons)
    page = HtmlReporter().render(diagnosis, signals, Run({}))
    assert "needs CPUs are short" not in page
    assert ">CPUs are short<" in page
    assert ">needs recompute<" in page
    assert ">ddiag run on idle hosts<" in page, "a command keeps its spelling"


def test_one_more_line_is_shown_rather_than_announced() -> None:
    def rows(count: int) -> str:
        evidence = tuple(Evidence(f"figure {n}", n) for n in range(count))
        return TerminalReporter(width=80).render(*diagnosed(finding("DD501", evidence=evidence)))

    assert "figure 6" in rows(7)
    assert "more of" not in rows(7)
    assert "… 2 more of 8" in rows(8)


def test_amounts_per_step_are_written_as_sizes() -> None:
    shown = diagnosed(finding("DD501", evidence=(Evidence("bytes sent", 37_840_896, "bytes/step"),)))
    assert "36.1 MiB per step" in TerminalReporter(width=80).render(*shown)


def test_words_and_numbers_of_one_table_are_read_from_the_left() -> None:
    mixed = (Evidence("waited for in", "all_reduce #23 of default_pg"), Evidence("ranks that wait", 1, "rank"))
    lines = TerminalReporter(width=80).render(*diagnosed(finding("DD501", evidence=mixed))).splitlines()
    columns = {line.index(word) for line in lines for word in ("all_reduce", "1 rank") if word in line}
    assert len(columns) == 1
