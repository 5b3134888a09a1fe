from __future__ import annotations

import pytest

from ddiag.reporters.markdown import MarkdownReporter
from ddiag.reporters.markdown_text import escaped
from tests.unit.reporters.diagnoses import COVERAGE, EXPOSED, LATE, NASTY, SMALL, diagnosed
from tests.unit.rulekit.making import finding


def test_an_issue_has_everything_to_act_on() -> None:
    text = MarkdownReporter().render(*diagnosed(LATE, EXPOSED, SMALL, coverage=COVERAGE, abstain=2))
    for words in (
        "## ddiag: degraded",
        "### ■ DD501 rank 3 arrives last",
        "critical · high confidence · 36.0 ms/step",
        "| waiting it causes | 90 % | 50 % | collectives |",
        "1. look at `nvidia-smi -q -d CLOCK` on node-a",
        "a consequence of DD501",
        "| 3 | 200 ms |",
        "- not used: rank3.json: is empty",
        "2 rules: no memory events; to settle it: profile_memory=True",
    ):
        assert words in text


def test_a_healthy_job_is_short() -> None:
    text = MarkdownReporter().render(*diagnosed())
    assert "## ddiag: healthy" in text
    assert "###" in text  # where the step goes
    assert "Verify" not in text


def test_evidence_stays_text() -> None:
    text = MarkdownReporter().render(*diagnosed(finding(title=NASTY, fix=(NASTY,))))
    assert "<script" not in text.replace("\\<script", "")
    assert "\\[x](http" in text
    assert "\x1b" not in text
    assert "@all" not in text
    title = next(line for line in text.splitlines() if line.startswith("### ▲"))
    assert "a\\|b" in title


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("num_workers=4", "num_workers=4"),
        ("__next__", "\\_\\_next\\_\\_"),
        ("run `a|b_c*` now", "run `a\\|b_c*` now"),
        ("odd ` tick", "odd \\` tick"),
        ("# title", "\\# title"),
        ("1. first", "1\\. first"),
        ("- item", "\\- item"),
        ("3.5 ms - 2", "3.5 ms - 2"),
        ("two\nlines", "two lines"),
    ],
)
def test_only_what_would_be_markup_is_escaped(words: str, expected: str) -> None:
    assert escaped(words) == expected


def test_a_long_list_says_of_how_many() -> None:
    many = [finding(f"DD3{n:02}", root_cause=f"RC-{n + 10}") for n in range(5)]
    text = MarkdownReporter(most_findings=2).render(*diagnosed(*many))
    assert "3 more of 5 findings" in text
