import polars as pl

from ddiag.rulekit import Confidence, Severity
from tests.rules.checking import evidence, findings, the_finding


def summary(**change: object) -> pl.DataFrame:
    row = {
        "group": "0",
        "op": "all_reduce",
        "bytes": 4096,
        "group_size": 8,
        "count_per_step": 300.0,
        "dur_ms": 18.0,
        "wait_ms": 3.0,
        "transfer_ms": 15.0,
        "exposed_ms": 17.0,
        "algbw_gbps": 0.1,
        "busbw_gbps": 0.2,
    }
    schema = {"bytes": pl.Int64, "wait_ms": pl.Float64, "transfer_ms": pl.Float64}
    return pl.DataFrame([{**row, **change}], schema_overrides=schema)


def test_fires_and_does_not_count_waiting_as_cost() -> None:
    found = the_finding("DD405", collectives={"summary": summary()})
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == 14.0
    assert found.culprits.groups == ("0",)
    assert evidence(found, "tiny collectives").value == 300.0


def test_sizes_missing_in_old_traces_are_judged_by_duration_and_only_mentioned() -> None:
    found = the_finding("DD405", collectives={"summary": summary(bytes=None)})
    assert found.severity is Severity.INFO
    assert "megabytes" in found.doubt
    assert found.confidence is Confidence.MEDIUM
    assert evidence(found, "size").value == "not in the evidence"


def test_long_collectives_of_unknown_size_are_not_tiny() -> None:
    assert findings("DD405", collectives={"summary": summary(bytes=None, count_per_step=30.0)}) == []


def test_large_messages_are_quiet() -> None:
    assert findings("DD405", collectives={"summary": summary(bytes=1 << 20)}) == []


def test_a_few_metric_reductions_are_quiet() -> None:
    assert findings("DD405", collectives={"summary": summary(count_per_step=6.0)}) == []


def test_time_that_is_all_waiting_is_quiet() -> None:
    assert findings("DD405", collectives={"summary": summary(wait_ms=16.0)}) == []


def test_barriers_are_another_rules_subject() -> None:
    assert findings("DD405", collectives={"summary": summary(op="barrier", bytes=0)}) == []
