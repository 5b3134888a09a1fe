from __future__ import annotations

import pytest

from ddiag.ingest.file_rank import rank_from_name


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("rank_12.json.gz", 12),
        ("rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz", 70),
        ("trace_8_rank_1.json", 1),
        ("worker0.1623143089861.pt.trace.json.gz", 0),
        ("worker17_step_12.169412.pt.trace.json", 17),
        ("trace_r12.json", 12),
        ("llama-r7.json.zst", 7),
        ("r5.json", 5),
        ("_dump_0", 0),
        ("nccl_trace_dump_31.json", 31),
        ("global_rank_9_local_rank_1.json", 9),
        ("local_rank_1_rank_9.json", 9),
        ("rank0_iter16_18.json", 0),
        ("RANK=4.json", 4),
        ("mtia_inference_rank_0.json.gz", 0),
    ],
)
def test_a_name_states_its_rank(name: str, rank: int) -> None:
    assert rank_from_name(name) == rank


@pytest.mark.parametrize(
    "name",
    [
        "gpu-node17_12345.1623143089861.pt.trace.json",
        "host12.json",
        "ip-10-3-32-122_991.1700000000.pt.trace.json.gz",
        "dgx-r12n3_77.pt.trace.json",
        "trace.json",
        "resnet50.json",
        "frank3.json",
        "local_rank_2.json",
        "worker-node-3.json",
        "step_12.json",
        "llama3r8b.json",
    ],
)
def test_digits_of_hosts_models_and_steps_are_not_ranks(name: str) -> None:
    assert rank_from_name(name) is None


def test_the_folder_may_state_it() -> None:
    assert rank_from_name("trace.json", "rank_3") == 3
    assert rank_from_name("rank1.json", "rank_3") == 1
    assert rank_from_name("trace.json", "worker0") == 0
    assert rank_from_name("trace.json", "run_with_rank_0_excluded") is None
