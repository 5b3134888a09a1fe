"""Cases of evidence with the diagnosis it supports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.score_cases import cases_below, score

OURS = Path(__file__).resolve().parents[2] / "fixtures" / "cases"


@pytest.mark.parametrize("case", cases_below(OURS), ids=lambda path: path.name)
def test_a_case_of_ours_is_diagnosed_right(case: Path) -> None:
    found = score(case)
    assert not found.wrong, f"{found.wrong}\n{found.said}"
