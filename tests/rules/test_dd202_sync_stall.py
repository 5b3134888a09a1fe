import polars as pl
import pytest

from ddiag.rulekit import Abstain, Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

ITEM = {"stall_ms": 30.0, "count_per_step": 12.0, "op": "aten::item", "where": "train.py(88): log_loss"}


def calls(*rows: tuple[int, str, float, float]) -> pl.DataFrame:
    """(rank, op, count_per_step, stall_ms)."""
    names = ("rank", "op", "count_per_step", "stall_ms")
    table = pl.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    return table.with_columns(where=pl.lit(""), wait_ms=pl.col("stall_ms") + 1.0)


def test_fires_with_the_call_its_place_and_the_idle_time() -> None:
    found = the_finding("DD202", sync_points=ITEM)
    assert found.title.startswith("aten::item at train.py(88): log_loss lets the device run dry 12 times per step")
    assert "30.0 ms idle per step (15%)" in found.title
    assert found.severity is Severity.WARNING
    assert found.culprits.where == "train.py(88): log_loss"
    assert found.culprits.ranks == ()
    assert evidence(found, "idle after blocking calls").value == 30.0
    assert found.cost.gpu_hours == pytest.approx(0.15 * 8 * 24)


def test_a_single_call_is_told_in_words() -> None:
    rare = {**ITEM, "count_per_step": 0.83}
    assert "run dry in 83% of steps" in the_finding("DD202", sync_points=rare).title
    assert (
        "lets the device run dry once per step"
        in the_finding("DD202", sync_points={**ITEM, "count_per_step": 1.0}).title
    )


def test_blocking_that_leaves_no_idle_device_is_quiet() -> None:
    assert findings("DD202", sync_points={"stall_ms": 0.0, "count_per_step": 400.0}) == []


def test_below_the_limit_is_quiet() -> None:
    assert findings("DD202", sync_points={**ITEM, "stall_ms": 9.5}) == []


def test_a_large_share_of_a_tiny_step_is_noise() -> None:
    assert findings("DD202", step_ms=8.0, sync_points={**ITEM, "stall_ms": 0.9}) == []


def test_the_worst_call_leads_and_the_others_are_counted() -> None:
    table = calls((0, "aten::nonzero", 4.0, 8.0), (0, "aten::item", 2.0, 22.0), (1, "aten::item", 2.0, 22.0))
    found = the_finding("DD202", job_facts={"ranks": (0, 1)}, sync_points={"table": table, "stall_ms": 30.0})
    assert found.title.startswith("aten::item lets the device run dry 2 times per step (and 2 other calls)")
    assert found.cost.ms_per_step == 30.0
    assert evidence(found, "of it after the worst call").value == 22.0


def test_one_stalled_rank_is_named() -> None:
    table = calls((0, "aten::item", 1.0, 0.2), (1, "aten::item", 9.0, 40.0))
    found = the_finding("DD202", job_facts={"ranks": (0, 1)}, sync_points={"table": table, "stall_ms": 40.0})
    assert found.culprits.ranks == (1,)


@pytest.mark.parametrize(
    ("op", "advice"),
    [
        ("aten::item", "logging_steps"),
        ("aten::nonzero", "torch.where"),
        ("aten::_to_copy", "non_blocking=True"),
        ("cudaDeviceSynchronize", "torch.cuda.synchronize()"),
        ("hipStreamSynchronize", "torch.cuda.synchronize()"),
        ("cudaMemcpyAsync", "pin_memory=True"),
        ("aten::empty", "expandable_segments"),
    ],
)
def test_the_fix_fits_the_call(op: str, advice: str) -> None:
    assert advice in the_finding("DD202", sync_points={**ITEM, "op": op}).fix[0]


def test_recorded_stacks_lower_confidence() -> None:
    found = the_finding("DD202", sync_points=ITEM, job_facts={"with_stack": True})
    assert found.confidence is Confidence.MEDIUM
    assert "with_stack=False" in found.doubt


def test_a_host_only_trace_has_no_device_to_run_dry() -> None:
    assert findings("DD202", job_facts={"device_kind": "cpu"}, sync_points=ITEM) == []


def test_one_step_with_python_stacks_does_not_decide() -> None:
    (said,) = check("DD202", steps=1, job_facts={"with_stack": True}, sync_points=ITEM)
    assert isinstance(said, Abstain)
    assert "with_stack=False" in said.capture
