import polars as pl
import pytest

from ddiag.rulekit import Abstain, Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

EVERYBODY = range(8)


def shares(allocated: float, reserved: float, ranks: tuple[int, ...] = tuple(EVERYBODY)) -> dict[str, dict[int, float]]:
    return {"allocated": dict.fromkeys(ranks, allocated), "reserved": dict.fromkeys(ranks, reserved)}


def test_fires_when_what_is_in_use_fills_the_device() -> None:
    found = the_finding("DD601", memory=shares(0.91, 0.95))
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.HIGH
    assert "ranks 0–7" in found.title
    assert "72.1 GiB of 79.2 GiB in use at the peak (91%)" in found.title
    assert evidence(found, "peak reserved").value == pytest.approx(0.95)
    assert evidence(found, "peak allocated").limit == 0.85
    assert found.culprits.ranks == ()
    assert found.cost.ms_per_step is None


def test_reserve_that_is_not_in_use_is_fragmentation_not_need() -> None:
    assert findings("DD601", memory=shares(0.70, 0.95)) == []


def test_high_use_with_headroom_is_quiet() -> None:
    assert findings("DD601", memory=shares(0.89, 0.91)) == []


def test_one_full_rank_is_named_and_called_imbalance() -> None:
    found = the_finding("DD601", memory=shares(0.93, 0.96, ranks=(5,)))
    assert found.culprits.ranks == (5,)
    assert found.victims == (0, 1, 2, 3, 4, 6, 7)
    assert "even out the ranks" in found.fix[0]
    assert evidence(found, "above the median rank").value == pytest.approx(0.15)


def test_equal_ranks_are_not_called_imbalance() -> None:
    assert not any("even out" in step for step in the_finding("DD601", memory=shares(0.93, 0.96)).fix)


def test_a_little_more_than_the_median_is_no_imbalance() -> None:
    one_more = {"allocated": {r: 0.93 if r == 5 else 0.88 for r in EVERYBODY}, "reserved": {5: 0.96}}
    found = the_finding("DD601", memory=one_more)
    assert found.culprits.ranks == (5,)
    assert not any("even out" in step for step in found.fix)


def test_abstains_when_the_capacity_is_unknown() -> None:
    (said,) = check("DD601", memory={**shares(0.91, 0.95), "capacity_bytes": None})
    assert isinstance(said, Abstain)
    assert "capacity" in said.reason


def test_without_reserved_figures_allocated_alone_decides_with_less_confidence() -> None:
    row = {"rank": 0, "device": "cuda:0", "peak_allocated_bytes": 95, "capacity_bytes": 100}
    table = pl.DataFrame([{**row, "peak_reserved_bytes": None}], schema_overrides={"peak_reserved_bytes": pl.Int64})
    found = the_finding("DD601", job_facts={"ranks": (0,)}, memory={"per_rank": table})
    assert found.confidence is Confidence.MEDIUM


def test_failed_requests_that_the_job_survived_stand_beside_it() -> None:
    retries = {"retried": {3: {"ooms": 4}}}
    found = the_finding("DD601", memory=shares(0.91, 0.95), allocator_retries=retries)
    assert evidence(found, "requests that failed").value == 4
    plain = the_finding("DD601", memory=shares(0.91, 0.95))
    assert "requests that failed" not in {row.label for row in plain.evidence}
