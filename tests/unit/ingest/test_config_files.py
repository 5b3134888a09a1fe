# ruff: noqa: E501
"""Configurations in JSON and YAML: told by their keys, read as far as they go."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.api import load
from ddiag.errors import InputError
from ddiag.schema.config_text import json_object, scalar, yaml_mapping

FSDP = """compute_environment: LOCAL_MACHINE   # written by accelerate config
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: "LlamaDecoderLayer"
  fsdp_min_num_params: 1e6
num_machines: 2
num_processes: 16
"""
ZERO = '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2, "overlap_comm": "true", "x": 5e8}}'


def _settings(path: Path) -> dict[str, str]:
    rows = load([str(path)], jobs=1).table("config").iter_rows(named=True)
    return {f"{row['kind']}:{row['key']}": row["value"] for row in rows}


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["default_config.yaml", "anything.txt"])
def test_accelerate_yaml_gives_its_own_keys_and_fsdps(tmp_path: Path, name: str) -> None:
    found = _settings(_written(tmp_path / name, FSDP))
    assert found["accelerate:num_processes"] == "16"
    assert found["accelerate:downcast_bf16"] == "no"
    assert found["fsdp:transformer_layer_cls_to_wrap"] == "LlamaDecoderLayer"
    assert float(found["fsdp:min_num_params"]) == 1e6


def test_a_deepspeed_plugin_in_accelerate_is_a_deepspeed_configuration(tmp_path: Path) -> None:
    text = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n"
    found = _settings(_written(tmp_path / "a.yaml", text))
    assert found["ds_config:zero_optimization.stage"] == "3"
    assert found["ds_config:zero_optimization.offload_optimizer.device"] == "cpu"


def test_text_that_looks_like_a_value_keeps_its_quotes(tmp_path: Path) -> None:
    found = _settings(_written(tmp_path / "ds.json", ZERO))
    assert found["ds_config:zero_optimization.overlap_comm"] == '"true"'
    assert found["ds_config:zero_optimization.stage"] == "2"


def test_secrets_are_left_out(tmp_path: Path) -> None:
    text = "per_device_train_batch_size: 1\nhub_token: hf_abcdef\nwandb_api_key: 1234\n"
    assert set(_settings(_written(tmp_path / "t.yaml", text))) == {"trainer:per_device_train_batch_size"}


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_a_file_that_is_cut_off_is_used_as_far_as_it_goes(tmp_path: Path, share: float) -> None:
    found = _settings(_written(tmp_path / "ds.json", ZERO[: int(share * len(ZERO))]))
    assert found["ds_config:train_micro_batch_size_per_gpu"] == "4"
    assert "config_error:json" in found


@pytest.mark.parametrize(
    "text", ['{"zero_optimization": {"stage": 2,},}', '{\n// mine\n"zero_optimization": {"stage": 2}\n}']
)
def test_comments_and_trailing_commas_are_told_and_read_over(text: str) -> None:
    found, wrong = json_object(text)
    assert found == {"zero_optimization": {"stage": 2}}
    assert wrong.startswith("no valid JSON at line")


def test_what_is_no_configuration_is_left_to_others(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load([str(_written(tmp_path / "model.json", '{"hidden_size": 4096, "num_hidden_layers": 32}'))], jobs=1)


def test_a_log_of_one_object_per_line_is_no_configuration(tmp_path: Path) -> None:
    line = '{"log": "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "fp16": {"enabled": 1}}\n'
    run = load([str(_written(tmp_path / "pod.log", 3 * line))], jobs=1)
    assert run.table("log_events").height >= 1


def test_a_trainer_state_gives_its_history(tmp_path: Path) -> None:
    text = (
        '{"global_step": 20, "log_history": [{"step": 10, "loss": 2.5}, {"step": 20, "loss": 2.25, "grad_norm": 1.5}]}'
    )
    rows = load([str(_written(tmp_path / "trainer_state.json", text))], jobs=1).table("log_metrics")
    assert rows.select("step", "name", "value").rows() == [
        (10, "loss", 2.5),
        (20, "loss", 2.25),
        (20, "grad_norm", 1.5),
    ]


def test_yaml_that_launchers_write() -> None:
    lines = [
        "a:",
        "  b: [x, 2]",
        "  c:",
        "    - one",
        "    - 2",
        "d: {}",
        "e: 'no'",
        "f: ~",
        "g: off",
        "not yaml at all",
    ]
    assert yaml_mapping(lines) == {
        "a": {"b": ["x", 2], "c": ["one", 2]}, "d": {}, "e": "no", "f": None, "g": "off",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"), [("5e8", 5e8), ("1_000", 1000), ('"7"', "7"), ("True", True), ("null", None)]
)
def test_scalars(text: str, value: object) -> None:
    assert scalar(text) == value
