import pytest

from ddiag.rulekit import Severity
from tests.rules.checking import evidence, findings, the_finding


def test_fires_with_compilation_spread_over_the_steps() -> None:
    found = the_finding("DD205", python_overhead={"compile_ms": 150.0})
    assert "5 steady steps takes 150 ms (30.0 ms per step)" in found.title
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == pytest.approx(30.0)
    assert evidence(found, "compilation").limit == 50.0
    assert "TORCH_LOGS=recompiles" in found.fix[0]


def test_critical_when_it_takes_a_quarter_of_the_time() -> None:
    assert the_finding("DD205", python_overhead={"compile_ms": 400.0}).severity is Severity.CRITICAL


def test_a_cache_lookup_is_quiet() -> None:
    assert findings("DD205", steps=1, python_overhead={"compile_ms": 45.0}) == []


def test_one_compilation_among_many_steps_is_quiet() -> None:
    assert findings("DD205", steps=100, python_overhead={"compile_ms": 400.0}) == []


def test_a_recording_names_what_is_compiled_and_counts_all_steps_after_warm_up() -> None:
    told = {"compile_ms": 300.0, "compile_steps": 10, "compiled_again": ("forward (model.py:7)", "loss (train.py:3)")}
    found = the_finding("DD205", python_overhead=told)
    assert "10 steps after warm-up takes 300 ms (30.0 ms per step)" in found.title
    assert found.culprits.where == "forward (model.py:7), loss (train.py:3)"
