import polars as pl
import pytest

from ddiag.rulekit import Severity
from tests.rules.checking import evidence, findings, the_finding


def speeds(slow: dict[int, float], ranks: int = 8, column: str = "h2d_gbps") -> dict[str, pl.DataFrame]:
    other = "d2h_gbps" if column == "h2d_gbps" else "h2d_gbps"
    rows = [{"rank": r, column: slow.get(r, 50.0 + 0.1 * r), other: 48.0} for r in range(ranks)]
    return {"per_rank": pl.DataFrame(rows)}


@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("column", ["h2d_gbps", "d2h_gbps"])
def test_names_the_rank_whose_link_is_slow(rank: int, column: str) -> None:
    found = the_finding("DD701", copies=speeds({rank: 24.0}, column=column))
    assert found.culprits.ranks == (rank,)
    assert evidence(found, "ratio").value == pytest.approx(0.48, abs=0.01)


def test_exposed_copies_make_it_a_warning() -> None:
    slow = speeds({5: 12.0})
    assert the_finding("DD701", copies=slow).severity is Severity.INFO
    found = the_finding("DD701", copies=slow, step_budget={"copy_ms": {5: 20.0}})
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == pytest.approx(20 * (1 - 12 / 50.35), rel=0.02)


def test_ordinary_spread_is_quiet() -> None:
    assert findings("DD701", copies=speeds({5: 36.0})) == []


def test_two_slow_ranks_are_no_single_degraded_link() -> None:
    assert findings("DD701", copies=speeds({4: 24.0, 5: 24.0})) == []


def test_too_few_peers_do_not_make_a_norm() -> None:
    assert findings("DD701", job_facts={"ranks": (0, 1, 2)}, copies=speeds({2: 10.0}, ranks=3)) == []


def test_without_large_copies_nothing_is_said() -> None:
    assert findings("DD701", copies={"per_rank": None}) == []
