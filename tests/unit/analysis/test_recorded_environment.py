"""Environment and configurations of a recording lead to findings; those of a job that does not read them to none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddiag.api import diagnose, load
from ddiag.rulekit import Finding
from ddiag.rulekit.diagnosis import Status
from ddiag.schema.samples import HEADER_KIND, encode
from tests.recorded_settings import NODE, group, process, record

ALWAYS = {"DD206"}
"""The first steps of a run."""
OF_TORCHRUN = {
    "OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
OF_A_CLUSTER = {
    "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "eth0",
    "CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "NCCL_IB_TIMEOUT": "22", "TORCH_DISTRIBUTED_DEBUG": "OFF",
}  # fmt: skip
ZERO_2 = {
    "version": "0.19.0", "zero_optimization_stage": 2, "zero_overlap_comm": False, "zero_contiguous_gradients": True,
    "zero_reduce_bucket_size": 500_000_000, "zero_allgather_bucket_size": 500_000_000, "gradient_clipping": 0.0,
    "zero_prefetch_bucket_size": 50_000_000, "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2, "fp16_enabled": False, "bfloat16_enabled": True,
}  # fmt: skip
FSDP_1 = {
    "backward_prefetch": "BACKWARD_PRE", "forward_prefetch": False, "limit_all_gathers": True, "offload_params": False,
    "use_orig_params": False,
}  # fmt: skip


def told(variables: Mapping[str, str], backend: str = "nccl", **more: Any) -> dict[str, Any]:
    """The facts of one rank with torchrun's variables and *variables*."""
    return {**process(environment={**OF_TORCHRUN, **variables}, nccl="2.27.3"), "group": group(backend), **more}


def found(folder: Path) -> dict[str, Finding]:
    return {one.rule: one for one in diagnose(load([str(folder)])).findings if one.rule not in ALWAYS}


@pytest.mark.parametrize(
    "each",
    [
        pytest.param(told({}), id="torchrun"),
        pytest.param(told(OF_A_CLUSTER), id="cluster"),
        pytest.param(told({}, deepspeed=ZERO_2), id="zero-2"),
        pytest.param(
            told({}, deepspeed={**ZERO_2, "zero_optimization_stage": 3, "zero_overlap_comm": True}), id="zero-3"
        ),
        pytest.param(told({}, fsdp=FSDP_1, fsdp_unit={"api": 1, "strategy": "FULL_SHARD"}), id="fsdp1"),
        pytest.param(told({}, fsdp_unit={"api": 2, "offload": "OffloadPolicy"}), id="fsdp2"),
    ],
)
@pytest.mark.parametrize("devices", [True, False])
def test_a_healthy_job_is_quiet(tmp_path: Path, each: dict[str, Any], devices: bool) -> None:
    assert found(record(tmp_path, each, each, node=NODE, devices=devices)) == {}


HARMFUL = [
    ("NCCL_P2P_DISABLE", "1", "DD820", "through host memory"),
    ("NCCL_ALGO", "Ring", "DD422", "pinned by the environment"),
    ("NCCL_SOKCET_IFNAME", "eth0", "DD820", "NCCL_SOCKET_IFNAME is probably meant"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1", "DD820", "waits for every collective"),
    ("CUDA_LAUNCH_BLOCKING", "1", "DD821", "every launch waits"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "DD820", "cudaMalloc"),
]


@pytest.mark.parametrize(("name", "value", "rule", "words"), HARMFUL)
def test_a_harmful_variable_is_found_where_it_is_read(
    tmp_path: Path, name: str, value: str, rule: str, words: str
) -> None:
    each = told({name: value})
    one = found(record(tmp_path / "a", each, each))[rule]
    assert words in one.title
    without_device = told({name: value}, "cpu:gloo,cuda:nccl")
    assert found(record(tmp_path / "b", without_device, without_device, devices=False)) == {}
    if not name.startswith(("CUDA", "PYTORCH")):
        over_gloo = told({name: value}, "gloo")
        assert found(record(tmp_path / "c", over_gloo, over_gloo)) == {}


TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-7\nGPU1\tNV18\t X \t0-7\n"


@pytest.mark.parametrize(
    ("variables", "backend", "rules"),
    [({"NCCL_P2P_DISABLE": "1"}, "nccl", {"DD421"}), ({"NCCL_P2P_DISABLE": "1"}, "gloo", set()), ({}, "nccl", set())],
)
def test_peer_access_that_is_off_matters_where_nvlink_joins_devices(
    tmp_path: Path, variables: dict[str, str], backend: str, rules: set[str]
) -> None:
    each = told(variables, backend)
    record(tmp_path, each, each)
    (tmp_path / "nodes").mkdir(exist_ok=True)
    lines = ({"kind": HEADER_KIND, "format_version": 1, "host": "node0"}, {"kind": "topology", "text": TOPOLOGY})
    (tmp_path / "nodes" / "node0.samples").write_bytes(b"".join(encode({"t": 1, **line}) for line in lines))
    findings = diagnose(load([str(tmp_path)])).findings
    assert {one.rule for one in findings if one.explained_by is None} - ALWAYS == rules


def test_a_rank_alone_may_have_it(tmp_path: Path) -> None:
    """A script sets it on one rank: neither the supervisor nor rank 0 knows."""
    folder = record(tmp_path, told({}), told({"CUDA_LAUNCH_BLOCKING": "1"}), node=NODE)
    assert set(found(folder)) == {"DD821"}


def test_what_gloo_reads_counts_for_gloo(tmp_path: Path) -> None:
    each = told({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "gloo")
    one = found(record(tmp_path, each, each, devices=False))["DD820"]
    assert one.title.startswith("TORCH_DISTRIBUTED_DEBUG=DETAIL")


def test_versions_decide_what_a_variable_does(tmp_path: Path) -> None:
    each = told({"NCCL_LAUNCH_ORDER_IMPLICIT": "1"})
    assert found(record(tmp_path / "new", each, each)) == {}
    each["process"]["nccl"] = "2.21.5"
    assert "needs version 2.26" in found(record(tmp_path / "old", each, each))["DD820"].title


def on_two_hosts(first: dict[str, Any], second: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    first["process"]["host"], second["process"]["host"] = "gn1", "gn2"
    return first, second


def test_nodes_that_differ(tmp_path: Path) -> None:
    same = {"NCCL_DEBUG": "WARN", "NCCL_CROSS_NIC": "1"}
    assert found(record(tmp_path / "a", *on_two_hosts(told(same), told(same)))) == {}
    other = on_two_hosts(told(same), told({**same, "NCCL_CROSS_NIC": "0"}))
    assert "nodes set NCCL_CROSS_NIC differently" in found(record(tmp_path / "b", *other))["DD925"].title
    old = on_two_hosts(told(same), told(same))
    old[1]["process"]["nccl"] = "2.21.5"
    assert "another NCCL" in found(record(tmp_path / "c", *old))["DD925"].title


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        ({"zero_reduce_bucket_size": 500}, "DD450", "that is elements"),
        ({"zero_offload_param": {"device": "cpu"}}, "DD830", "offload_param at stage 2 has no effect"),
        ({"zero_offload_optimizer": {"device": "cpu", "pin_memory": False}}, "DD830", "through pageable memory"),
        ({"zero_optimization_stage": 3, "zero_prefetch_bucket_size": 100}, "DD453", "one small piece at a time"),
        ({"zero_optimization_stage": 3, "zero_overlap_comm": False}, "DD454", "overlap_comm is off"),
    ],
)
def test_what_an_engine_took_is_judged(tmp_path: Path, change: dict[str, Any], rule: str, words: str) -> None:
    each = told({}, deepspeed={**ZERO_2, **change})
    assert words in found(record(tmp_path, each, each))[rule].title


def test_the_configuration_that_the_command_names_is_judged(tmp_path: Path) -> None:
    zero = {"zero_optimization": {"stage": 2, "reduce_buckt_size": 2e8, "overlap_comm": "false"}}
    node = {**NODE, "configs": [{"path": "ds.json", "wrong": "", "settings": zero}]}
    each = told({}, deepspeed=ZERO_2)
    one = [f.title for f in diagnose(load([str(record(tmp_path, each, each, node=node))])).findings]
    assert "reduce_buckt_size is no option; reduce_bucket_size is meant" in one
    assert 'zero_optimization.overlap_comm is the text "false", not a truth value' in one


def test_batch_sizes_that_do_not_multiply_are_told_of_a_job_that_never_trained(tmp_path: Path) -> None:
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}
    node = {
        **NODE,
        "configs": [{"path": "ds.json", "wrong": "", "settings": {**sizes, "zero_optimization": {"stage": 2}}}],
    }
    one = found(record(tmp_path / "a", told({}), told({}), node=node, steps=0))["DD830"]
    assert "train_batch_size 64 is not micro-batch" in one.title
    each = told({}, deepspeed={**ZERO_2, **sizes})  # half of the ranks hold one copy of the model together
    assert found(record(tmp_path / "b", each, each, node=node)) == {}


def test_a_job_in_its_first_step_is_asked_to_go_on(tmp_path: Path) -> None:
    verdict = diagnose(load([str(record(tmp_path, told({}), told({}), steps=0))])).verdict
    assert verdict.status is Status.INCONCLUSIVE
    assert "analyze it again" in verdict.headline


def test_units_without_prefetch(tmp_path: Path) -> None:
    each = told({}, fsdp={**FSDP_1, "backward_prefetch": "NO_PREFETCH"}, fsdp_unit={"api": 1, "strategy": "FULL_SHARD"})
    assert "every all-gather is waited for" in found(record(tmp_path / "a", each, each))["DD452"].title
    assert found(record(tmp_path / "b", each, each, devices=False)) == {}


@pytest.mark.parametrize(
    ("cpus", "whole", "starved"),
    [(("0-1", "0-1"), 16, True), (("0-1", "2-3"), 16, False), (("0-3", "0-3"), 16, False), (("0-1", "0-1"), 2, False)],
)
def test_ranks_that_share_a_few_cpus(tmp_path: Path, cpus: tuple[str, str], whole: int, starved: bool) -> None:
    ranks = [told({}) for _ in cpus]
    for rank, own in zip(ranks, cpus, strict=True):
        rank["process"].update(cpus=own, cpus_of_host=whole)
    assert set(found(record(tmp_path, *ranks))) == ({"DD220"} if starved else set())


def test_cpus_of_different_hosts_are_not_shared(tmp_path: Path) -> None:
    ranks = on_two_hosts(told({}), told({}))
    for rank in ranks:
        rank["process"].update(cpus="0-1", cpus_of_host=16)
    assert found(record(tmp_path, *ranks)) == {}
