from ddiag.rulekit import Severity
from tests.rules.checking import evidence, findings, the_finding


def test_fires_with_the_pause_and_the_ranks() -> None:
    found = the_finding("DD203", python_overhead={"gc_ms_per_step": 24.0, "gc_ranks": (2, 5)})
    assert "on ranks 2 and 5 takes 24.0 ms per step (12% of the step)" in found.title
    assert found.severity is Severity.WARNING
    assert found.culprits.ranks == (2, 5)
    assert found.victims == (0, 1, 3, 4, 6, 7)
    assert evidence(found, "garbage collection").value == 24.0
    assert "gc.collect(1)" in found.fix[0]


def test_all_ranks_collecting_is_a_matter_of_the_job() -> None:
    found = the_finding("DD203", python_overhead={"gc_ms_per_step": 60.0, "gc_ranks": tuple(range(8))})
    assert found.culprits.ranks == ()
    assert found.victims == ()
    assert found.severity is Severity.CRITICAL


def test_a_few_per_cent_is_information() -> None:
    found = the_finding("DD203", python_overhead={"gc_ms_per_step": 6.0, "gc_ranks": (1,)})
    assert found.severity is Severity.INFO


def test_young_generations_are_quiet() -> None:
    assert findings("DD203", python_overhead={"gc_ms_per_step": 3.0, "gc_ranks": (1,)}) == []


def test_under_a_millisecond_is_noise_however_short_the_step() -> None:
    quick = {"step_ms": 21.0, "python_overhead": {"gc_ms_per_step": 0.9, "gc_ranks": (1,)}}
    assert findings("DD203", **quick) == []
