"""What a recording says of environment, packages, limits and configurations, as rules see it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from ddiag.analysis.incident.records import node_facts, settings
from ddiag.api import load
from ddiag.model.signals_incident import NodeFacts, Settings
from ddiag.schema.folder import Manifest, write_manifest
from tests.recorded_settings import NODE, group, process, record
from tests.recordings import WALL_NS


def told(folder: Path) -> Settings:
    found = settings(load([str(folder)]))
    assert found is not None
    return found


def facts(folder: Path) -> NodeFacts:
    return node_facts(load([str(folder)])) or NodeFacts(())


def test_every_rank_tells_its_own_variables_once_per_host(tmp_path: Path) -> None:
    record(
        tmp_path,
        process(host="a", environment={"OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "0"}),
        process(host="a", environment={"OMP_NUM_THREADS": "1", "RANK": "1", "LOCAL_RANK": "1", "SLURM_PROCID": "1"}),
        process(host="b", environment={"OMP_NUM_THREADS": "2"}),
        node=NODE,
    )
    found = [(one.key, one.value, one.host) for one in told(tmp_path).of("env")]
    assert found == [("OMP_NUM_THREADS", "1", "a"), ("OMP_NUM_THREADS", "2", "b")]


def test_without_them_what_the_supervisor_saw_counts(tmp_path: Path) -> None:
    record(tmp_path, process(), process(), node=NODE)
    assert [(one.key, one.value, one.host) for one in told(tmp_path).of("env")] == [("OMP_NUM_THREADS", "8", "node0")]


@pytest.mark.parametrize(
    ("backend", "cuda", "read"),
    [
        ("nccl", "12.8", ["CUDA_LAUNCH_BLOCKING", "NCCL_P2P_DISABLE", "OMP_NUM_THREADS"]),
        ("cpu:gloo,cuda:nccl", "12.8", ["CUDA_LAUNCH_BLOCKING", "NCCL_P2P_DISABLE", "OMP_NUM_THREADS"]),
        ("gloo", "12.8", ["CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS"]),
        ("cpu:gloo,cuda:nccl", None, ["OMP_NUM_THREADS"]),
    ],
)
def test_variables_that_nothing_in_the_job_reads_are_set_apart(
    tmp_path: Path, backend: str, cuda: str | None, read: list[str]
) -> None:
    variables = dict.fromkeys(("CUDA_LAUNCH_BLOCKING", "NCCL_P2P_DISABLE", "OMP_NUM_THREADS"), "1")
    each = {**process(cuda=cuda, environment=variables), "group": group(backend)}
    record(tmp_path, each, each, devices=cuda is not None)
    found = told(tmp_path)
    assert sorted(one.key for one in found.of("env")) == read
    assert {one.key for one in (*found.of("env"), *found.of("env.unread"))} == set(variables)


def test_a_cuda_torch_that_uses_no_device_reads_no_variables_of_devices(tmp_path: Path) -> None:
    each = {**process(environment={"CUDA_LAUNCH_BLOCKING": "1"}), "group": group("nccl")}
    record(tmp_path, each, each, devices=False)
    assert told(tmp_path).of("env") == ()


def test_versions_are_those_that_are_loaded(tmp_path: Path) -> None:
    record(tmp_path, process(nccl="2.27.3"), process(nccl="2.27.3"), node=NODE)
    found = {one.key: one.value for one in told(tmp_path).of("package")}
    assert found == {"torch": "2.13.0+cu128", "nccl": "2.27.3", "numpy": "2.1.0", "nvidia-nccl-cu12": "2.27.3"}


def test_packages_beside_ddiag_are_not_the_jobs_when_it_runs_another_python(tmp_path: Path) -> None:
    record(tmp_path, process(executable="/other/bin/python"), process(executable="/other/bin/python"), node=NODE)
    assert "nvidia-nccl-cu12" not in {one.key for one in told(tmp_path).of("package")}


def test_limits_of_every_node_are_there(tmp_path: Path) -> None:
    record(tmp_path, process(), node=NODE)
    (tmp_path / "nodes").mkdir(exist_ok=True)
    (tmp_path / "nodes" / "b-2.env.json").write_text(json.dumps({**NODE, "host": "b", "limits": {"memlock": [-1, -1]}}))
    found = [(one.key, one.number, one.host) for one in facts(tmp_path).of("limit.", "shm.size_bytes")]
    assert found == [
        ("limit.memlock_bytes", 65536.0, "node0"),
        ("limit.open_files", None, "node0"),
        ("shm.size_bytes", float(1 << 26), "node0"),
        ("limit.memlock_bytes", None, "b"),
    ]


def test_ranks_that_may_not_run_everywhere_are_told(tmp_path: Path) -> None:
    bound, free = process(cpus="0-1,8", cpus_of_host=16), process(cpus="0-15", cpus_of_host=16)
    record(tmp_path, {**bound}, {**free})
    assert [(one.text, one.number) for one in facts(tmp_path).of("process.affinity")] == [("0-1,8", 100.0)]


ENGINE = {
    "version": "0.19.0",
    "zero_optimization_stage": 2,
    "zero_overlap_comm": False,
    "zero_reduce_bucket_size": 500_000_000,
    "zero_prefetch_bucket_size": 50_000_000,
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "zero_offload_optimizer": {"device": "cpu", "pin_memory": False},
    "bfloat16_enabled": True,
}


def ds_config(folder: Path) -> dict[str, str]:
    return {one.key: one.value for one in told(folder).of("ds_config")}


def test_an_engine_tells_its_configuration_in_the_words_of_the_file(tmp_path: Path) -> None:
    record(tmp_path, {**process(), "deepspeed": ENGINE})
    assert ds_config(tmp_path) == {
        "zero_optimization.stage": "2",
        "zero_optimization.reduce_bucket_size": "500000000",
        "zero_optimization.stage3_prefetch_bucket_size": "50000000",
        "zero_optimization.offload_optimizer.device": "cpu",
        "zero_optimization.offload_optimizer.pin_memory": "false",
        "train_micro_batch_size_per_gpu": "8",
        "gradient_accumulation_steps": "4",
        "bf16.enabled": "true",
    }


def test_overlap_that_is_off_at_stage_3_was_chosen_and_a_cpu_pins_nothing(tmp_path: Path) -> None:
    record(tmp_path, {**process(), "deepspeed": {**ENGINE, "zero_optimization_stage": 3}}, devices=False)
    found = ds_config(tmp_path)
    assert found["zero_optimization.overlap_comm"] == "false"
    assert "zero_optimization.offload_optimizer.pin_memory" not in found


FILE = {
    "path": "ds.json",
    "wrong": "no valid JSON at line 3",
    "settings": {
        "zero_optimization": {"stage": "auto", "overlap_comm": "false"},
        "train_batch_size": 7,
        "steps_per_print": 100,
    },
}


def test_a_file_counts_but_for_what_the_engine_settled(tmp_path: Path) -> None:
    record(tmp_path, {**process(), "deepspeed": ENGINE}, node={**NODE, "configs": [FILE]})
    found = told(tmp_path)
    from_file = [(one.key, one.value) for one in found.of("ds_config") if one.source == "ds.json"]
    assert from_file == [("zero_optimization.overlap_comm", '"false"'), ("steps_per_print", "100")]
    assert found.of("config_error") == ()


def test_a_file_of_a_job_that_never_trained_counts_as_it_is(tmp_path: Path) -> None:
    record(tmp_path, process(), node={**NODE, "configs": [FILE]}, steps=0)
    found = told(tmp_path)
    assert {one.key for one in found.of("ds_config")} == {
        "zero_optimization.stage", "zero_optimization.overlap_comm", "train_batch_size", "steps_per_print"
    }  # fmt: skip
    assert [one.value for one in found.of("config_error")] == ["no valid JSON at line 3"]


ACCELERATE = {
    "path": "fsdp.yaml",
    "wrong": "",
    "settings": {
        "distributed_type": "FSDP",
        "num_processes": 8,
        "fsdp_config": {"fsdp_backward_prefetch": "NO_PREFETCH", "fsdp_offload_params": True},
    },
}


def test_an_option_of_the_command_goes_before_the_file_and_unused_parts_are_void(tmp_path: Path) -> None:
    sharded = {**process(), "fsdp_unit": {"api": 1, "strategy": "FULL_SHARD"}}
    node = {**NODE, "configs": [ACCELERATE]}
    record(tmp_path / "a", sharded, node=node)
    command = ("accelerate", "launch", "--num_processes=2", "--fsdp_offload_params", "false", "train.py")
    write_manifest(tmp_path / "a", Manifest("0.1", "job", command, "accelerate", WALL_NS, "node0", 1))
    found = told(tmp_path / "a")
    assert {one.key for one in found.of("fsdp")} == {"version", "sharding_strategy", "backward_prefetch"}
    assert found.of("accelerate", "num_processes") == ()
    assert told(record(tmp_path / "b", process(), node=node)).of("fsdp") == ()


def test_units_tell_how_they_were_made_unless_there_is_no_device(tmp_path: Path) -> None:
    root = {"backward_prefetch": "NO_PREFETCH", "limit_all_gathers": False, "offload_params": True}
    each = {**process(), "fsdp": root, "fsdp_unit": {"api": 1, "strategy": "FULL_SHARD"}}
    found = {one.key: one.value for one in told(record(tmp_path / "a", each)).of("fsdp")}
    assert found == {
        "backward_prefetch": "NO_PREFETCH",
        "limit_all_gathers": "false",
        "offload_params": "true",
        "sharding_strategy": "FULL_SHARD",
        "version": "1",
    }
    assert told(record(tmp_path / "b", each, devices=False)).of("fsdp", "backward_prefetch") == ()


def test_how_the_job_ended_and_its_command_keep_their_keys(tmp_path: Path) -> None:
    table = load([str(record(tmp_path, process()))]).table("config")
    assert table.filter(pl.col("key") == "launcher")["value"].to_list() == ["torchrun"]
