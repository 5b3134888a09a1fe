import pytest

from ddiag.rulekit import Abstain, Confidence, Severity
from tests.rules.checking import check, evidence, findings, the_finding

CHURN = {"mallocs_per_step": 3.0, "frees_per_step": 3.0, "ms_per_step": 24.0, "worst_rank": 2}
TIGHT = {"allocated": dict.fromkeys(range(8), 0.60), "reserved": dict.fromkeys(range(8), 0.95)}


def test_fires_with_calls_time_and_worst_rank() -> None:
    found = the_finding("DD602", allocator_calls=CHURN)
    assert "3 cudaFree and 3 cudaMalloc calls take 24.0 ms per step on rank 2" in found.title
    assert found.severity is Severity.WARNING
    assert found.cost.step_share == pytest.approx(0.12)
    assert evidence(found, "cudaFree").limit == 0.2
    assert "expandable_segments:True" in found.fix[0]


def test_critical_when_a_quarter_of_the_step_goes_into_it() -> None:
    assert the_finding("DD602", allocator_calls={**CHURN, "ms_per_step": 60.0}).severity is Severity.CRITICAL


def test_a_cache_that_is_switched_off_is_named_first() -> None:
    found = the_finding("DD602", allocator_calls={**CHURN, "mallocs_per_step": 900.0, "frees_per_step": 900.0})
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in found.fix[0]
    assert found.title.startswith("device memory is not cached: 900 cudaFree and 900 cudaMalloc")


def test_requests_without_returns_are_a_cache_that_still_grows() -> None:
    found = the_finding("DD602", allocator_calls={**CHURN, "frees_per_step": 0.0})
    assert found.title.startswith("the allocator's cache still grows inside steps: 0 cudaFree and 3 cudaMalloc")


def test_amd_devices_have_calls_of_their_own_name() -> None:
    amd = {"device_kind": "rocm", "device_names": ("AMD Instinct MI300X",)}
    found = the_finding("DD602", allocator_calls=CHURN, job_facts=amd)
    assert "3 hipFree and 3 hipMalloc" in found.title
    assert evidence(found, "hipFree").value == 3.0
    assert evidence(found, "hipMalloc").value == 3.0


def test_cheap_calls_are_quiet() -> None:
    assert findings("DD602", allocator_calls={**CHURN, "ms_per_step": 2.0}) == []


def test_one_call_in_ten_steps_is_quiet() -> None:
    rare = {"mallocs_per_step": 0.1, "frees_per_step": 0.1, "ms_per_step": 24.0}
    assert findings("DD602", allocator_calls=rare) == []


def test_unused_reserve_on_a_full_device_is_fragmentation() -> None:
    found = the_finding("DD602", memory=TIGHT)
    assert "37% of what is reserved at the peak is unused" in found.title
    assert found.confidence is Confidence.MEDIUM
    assert found.cost.ms_per_step is None


def test_unused_reserve_with_room_left_is_quiet() -> None:
    room = {"allocated": dict.fromkeys(range(8), 0.40), "reserved": dict.fromkeys(range(8), 0.70)}
    assert findings("DD602", memory=room) == []


def test_a_full_device_without_unused_reserve_is_another_cause() -> None:
    full = {"allocated": dict.fromkeys(range(8), 0.92), "reserved": dict.fromkeys(range(8), 0.95)}
    assert findings("DD602", memory=full) == []


def test_does_not_need_memory_events() -> None:
    assert len(findings("DD602", allocator_calls=CHURN, memory=None)) == 1
    assert findings("DD602", memory=None) == []


@pytest.mark.parametrize(("calls", "off"), [(150.0, False), (250.0, True)])
def test_only_hundreds_of_calls_mean_that_caching_is_off(calls: float, off: bool) -> None:
    found = the_finding("DD602", allocator_calls={**CHURN, "mallocs_per_step": calls, "frees_per_step": calls})
    assert found.title.startswith("device memory is not cached") is off


def test_a_fifth_of_the_reserve_unused_is_usual() -> None:
    usual = {"allocated": dict.fromkeys(range(8), 0.76), "reserved": dict.fromkeys(range(8), 0.95)}
    assert findings("DD602", memory=usual) == []


@pytest.mark.parametrize("change", [{"allocator_calls": CHURN}, {"memory": TIGHT}])
def test_amd_devices_get_their_own_options(change: dict[str, object]) -> None:
    found = the_finding("DD602", job_facts={"device_kind": "rocm"}, **change)
    assert any("PYTORCH_HIP_ALLOC_CONF" in step for step in found.fix)
    assert "expandable" not in " ".join(found.fix)
    assert "cudaFree" not in found.verify


RETRIED = {"steps_with_retries": 40, "retries": 55, "extra_ms": 80.0}


def retried(*ranks: int, **columns: object) -> dict[str, object]:
    return {"allocator_calls": None, "allocator_retries": {"retried": {rank: {**RETRIED, **columns} for rank in ranks}}}


def test_retries_of_a_recording_tell_how_often_and_what_it_costs() -> None:
    found = the_finding("DD602", **retried(2))
    assert "runs out in 20% of the steps on rank 2" in found.title
    assert found.severity is Severity.WARNING
    assert found.cost.ms_per_step == pytest.approx(16.0)
    assert found.culprits.ranks == (2,)
    assert found.victims == (0, 1, 3, 4, 5, 6, 7)


def test_all_ranks_alike_name_none_and_an_unknown_cost_is_said() -> None:
    found = the_finding("DD602", **retried(*range(8), steps_with_retries=200, extra_ms=None))
    assert found.culprits.ranks == ()
    assert found.cost.ms_per_step is None
    assert "not known" in found.doubt


@pytest.mark.parametrize("columns", [{"steps_with_retries": 9}, {"steps_with_retries": 2, "steps": 10}])
def test_a_few_retries_are_long_batches(columns: dict[str, int]) -> None:
    assert findings("DD602", **retried(*range(8), **columns)) == []


def test_rare_retries_are_information() -> None:
    assert the_finding("DD602", **retried(2, steps_with_retries=12, extra_ms=None)).severity is Severity.INFO


def test_without_calls_and_without_retries_it_abstains() -> None:
    (said,) = check("DD602", allocator_calls=None, allocator_retries=None)
    assert isinstance(said, Abstain)
