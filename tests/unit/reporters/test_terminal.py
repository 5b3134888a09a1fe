from __future__ import annotations

import re
from typing import Any

import pytest

from ddiag.model.signals import StepBudget
from ddiag.reporters.step_bars import worst_ranks
from ddiag.reporters.terminal import TerminalReporter
from tests.unit.reporters.diagnoses import COVERAGE, EXPOSED, LATE, NASTY, SMALL, diagnosed
from tests.unit.rulekit.making import finding


def screen(*args: Any, width: int = 80, **options: Any) -> str:
    return TerminalReporter(width=width, **options).render(*args)


def full(width: int = 80, **options: Any) -> str:
    return screen(*diagnosed(LATE, EXPOSED, SMALL, coverage=COVERAGE, abstain=3), width=width, **options)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in full(width).splitlines()) <= width


def test_one_screen_tells_all_that_matters() -> None:
    text = full(80)
    assert len(text.splitlines()) <= 50
    flat = " ".join(text.split())
    for words in (
        "DEGRADED Rank 3 on node-a arrives last in 198 of 200 collectives",
        "critical · high confidence · 36.0 ms/step",
        "90 % limit 50 %",
        "25.0 MiB",
        "1e-09",
        "198 of 200 collectives",
        "1. look at `nvidia-smi -q -d CLOCK` on node-a",
        "nobody stands out",
        "only 4% of communication overlaps (due to DD501)",
        "30.0 ms 30 %",
        "ranks 2–7 of 8 gave no evidence",
        "not used: rank3.json: is empty",
        "r1.json: cut at 71 %",
        "12 records could not be understood",
        "clocks could not be aligned",
        "3 rules could not judge; the report says what to record",
    ):
        assert words in flat


def test_a_healthy_job_is_said_to_be_and_nothing_else() -> None:
    text = screen(*diagnosed())
    assert text.startswith("✔ HEALTHY")
    assert "DO THIS FIRST" not in text
    assert "GAPS" not in text


def test_information_is_no_thing_to_do_first() -> None:
    text = screen(*diagnosed(SMALL))
    assert "WORTH KNOWING" in text
    assert "DO THIS FIRST" not in text


def test_too_little_evidence_still_shows_what_there_is() -> None:
    assert screen(*diagnosed(step_budget=None)).startswith("? INCONCLUSIVE")


def test_long_lists_say_of_how_many() -> None:
    many = [finding(f"DD3{n:02}", ms=20.0 - n, root_cause=f"RC-{n + 10}") for n in range(12)]
    assert "3 more of 11" in screen(*diagnosed(*many))


def test_the_culprit_is_among_the_ten_ranks_shown() -> None:
    """A late rank waits least, so by time lost it would come last of 64."""
    ranks = tuple(range(64))
    waiting = {rank: 40.0 for rank in ranks if rank != 3}
    diagnosis, signals = diagnosed(LATE, job_facts={"ranks": ranks}, step_budget={"comm_wait_ms": waiting})
    text = screen(diagnosis, signals)
    assert "10 of 64 ranks" in text
    assert re.search(r"▶ rank 3 ", text)
    assert len(re.findall(r"rank \d+ +█", text)) == 10


def test_parts_of_a_bar_add_up_to_its_length() -> None:
    budget = diagnosed()[1].get(StepBudget)
    assert budget is not None
    bars = [line for line in screen(*diagnosed(), width=100).splitlines() if line.startswith("  rank")]
    lengths = {len(line.split("█", 1)[1].rsplit(" ", 2)[0]) for line in bars}
    assert len(lengths) == 1
    assert sum(worst_ranks(budget).parts[0].values()) == pytest.approx(200.0)


def test_without_colour_there_is_no_escape_code() -> None:
    assert "\x1b" not in full()
    assert "\x1b[" in full(color_system="truecolor")


def test_with_colour_the_words_are_the_same() -> None:
    assert re.sub(r"\x1b\[[0-9;]*m", "", full(color_system="256")) == full()


def test_a_terminal_without_block_characters_gets_letters() -> None:
    text = full(ascii_only=True)
    assert not set(text) & set("█▓╱▒░▚═▲■●✔└▶")
    assert "#" * 20 in text


def test_evidence_cannot_steer_the_terminal() -> None:
    nasty = finding(title=NASTY, fix=(NASTY,), verify=NASTY, why=NASTY)
    text = screen(*diagnosed(nasty))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[x](http://y)" in text  # shown as it is: rich must not read it as markup
