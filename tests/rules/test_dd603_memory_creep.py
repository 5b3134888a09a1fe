import polars as pl
import pytest

from ddiag.rulekit import Confidence, Severity
from tests.factories import EPOCH_NS, GIB, MIB
from tests.rules.checking import evidence, findings, the_finding


def ends(*mib: float, base_gib: int = 40) -> pl.DataFrame:
    """Allocated MiB of rank 0 just before the end of each 200 ms step; *base_gib* lie beneath."""
    rows = [
        {"rank": 0, "device": "cuda:0", "ts_ns": EPOCH_NS + (step + 1) * 200_000_000 - 1_000_000}
        | {"allocated_bytes": base_gib * GIB + round(value * MIB), "reserved_bytes": 60 * GIB}
        for step, value in enumerate(mib)
    ]
    return pl.DataFrame(rows)


def leak(steps: int, growth_mib: float = 100.0, base_gib: int = 40) -> dict[str, object]:
    timeline = ends(*(growth_mib * step for step in range(steps)), base_gib=base_gib)
    return {"timeline": timeline, "growth_bytes_per_step": growth_mib * MIB}


def test_fires_with_growth_and_the_steps_left() -> None:
    found = the_finding("DD603", steps=20, job_facts={"ranks": (0,)}, memory=leak(20))
    free = 85_017_493_504 * (1 - 0.78)
    assert "grows by 100 MiB per step" in found.title
    assert evidence(found, "steps left").value == pytest.approx(free / (100 * MIB), abs=1)
    assert evidence(found, "steps that rise").value == 1.0
    assert found.severity is Severity.WARNING
    assert found.confidence is Confidence.MEDIUM
    assert found.cost.ms_per_step is None


def test_few_steps_are_only_a_hint() -> None:
    found = the_finding("DD603", steps=5, job_facts={"ranks": (0,)}, memory=leak(5))
    assert found.severity is Severity.INFO
    assert found.confidence is Confidence.LOW


def test_three_steps_have_no_slope() -> None:
    assert findings("DD603", steps=3, job_facts={"ranks": (0,)}, memory=leak(3)) == []


def test_sawtooth_of_varying_batches_is_quiet() -> None:
    sawtooth = {"timeline": ends(*(0, 900, 100) * 7), "growth_bytes_per_step": 100.0 * MIB}
    assert findings("DD603", steps=20, job_facts={"ranks": (0,)}, memory=sawtooth) == []


def test_rounding_is_quiet() -> None:
    assert findings("DD603", steps=20, job_facts={"ranks": (0,)}, memory=leak(20, growth_mib=0.5)) == []


def test_drift_that_is_small_against_what_is_allocated_is_quiet() -> None:
    assert findings("DD603", steps=20, job_facts={"ranks": (0,)}, memory=leak(20, growth_mib=10.0)) == []


def test_an_unknown_capacity_gives_no_date_but_still_a_finding() -> None:
    found = the_finding("DD603", steps=20, job_facts={"ranks": (0,)}, memory={**leak(20), "capacity_bytes": None})
    assert "out of memory" not in found.title
    assert found.severity is Severity.INFO


@pytest.mark.parametrize("growth", [None, 0.0, -1e9])
def test_no_growth_is_quiet(growth: float | None) -> None:
    memory = {**leak(20), "growth_bytes_per_step": growth}
    assert findings("DD603", steps=20, job_facts={"ranks": (0,)}, memory=memory) == []


@pytest.mark.parametrize(("growth_mib", "speaks"), [(0.6, False), (2.0, True)])
def test_a_small_model_leaks_from_a_mebibyte_on(growth_mib: float, speaks: bool) -> None:
    found = findings("DD603", steps=20, job_facts={"ranks": (0,)}, memory=leak(20, growth_mib, base_gib=1))
    assert bool(found) is speaks


def test_thirty_mebibytes_of_forty_gibibytes_are_a_leak() -> None:
    assert len(findings("DD603", steps=20, job_facts={"ranks": (0,)}, memory=leak(20, 30.0))) == 1


@pytest.mark.parametrize(("growth_mib", "severity"), [(1.5, Severity.INFO), (2.5, Severity.WARNING)])
def test_a_leak_that_lasts_for_more_than_ten_thousand_steps_is_information(
    growth_mib: float, severity: Severity
) -> None:
    found = the_finding("DD603", steps=20, job_facts={"ranks": (0,)}, memory=leak(20, growth_mib, base_gib=1))
    assert found.severity is severity
