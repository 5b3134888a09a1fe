"""Which files of a command line are looked at, and what of them is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddiag.schema.folder import Manifest
from ddiag.supervise.named_configs import MOST_BYTES, named_configs
from ddiag.supervise.node_facts import write_facts
from ddiag.supervise.run_folder import Place

ZERO = '{"zero_optimization": {"stage": 2}}'


def kept(*command: str, launcher: str = "torchrun", **environment: str) -> list[tuple[str, object]]:
    found = named_configs(command, launcher, environment)
    return [(Path(one["path"]).name, one["settings"]) for one in found]


@pytest.mark.parametrize(
    "form", [("--deepspeed", "{}"), ("--deepspeed_config={}",), ("bash", "-c", "run --ds {} 2>&1")]
)
def test_a_configuration_is_found_however_it_is_named(tmp_path: Path, form: tuple[str, ...]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(ZERO)
    words = [word.format(path) for word in form]
    assert kept("torchrun", "train.py", *words) == [("ds.json", {"zero_optimization": {"stage": 2}})]


def test_only_configurations_of_a_known_kind_are_kept(tmp_path: Path) -> None:
    contents = {
        "data.json": '{"text": "private"}', "list.json": "[1]", "big.json": ZERO + " " * MOST_BYTES,
        "own.yaml": "lr: 1\n", "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 8\n",
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe{")
    (tmp_path / "folder.json").mkdir()
    paths = [str(tmp_path / name) for name in (*contents, "bad.json", "absent.json", "folder.json")]
    assert kept(*paths) == [("fsdp.yaml", {"distributed_type": "FSDP", "num_processes": 8})]


def test_accelerate_reads_its_default_unless_it_is_told_another(tmp_path: Path) -> None:
    own = tmp_path / "huggingface" / "accelerate"
    own.mkdir(parents=True)
    (own / "default_config.yaml").write_text("distributed_type: MULTI_GPU\n")
    found = [("default_config.yaml", {"distributed_type": "MULTI_GPU"})]
    assert kept("accelerate", "launch", "t.py", launcher="accelerate", XDG_CACHE_HOME=str(tmp_path)) == found
    assert kept("accelerate", "t.py", launcher="accelerate", HF_HOME=str(tmp_path / "huggingface")) == found
    assert kept("accelerate", "--config_file", "x", launcher="accelerate", XDG_CACHE_HOME=str(tmp_path)) == []
    assert kept("torchrun", "t.py", XDG_CACHE_HOME=str(tmp_path)) == []


def test_a_file_that_does_not_parse_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 2,}}')
    (one,) = named_configs([str(path)], "torchrun", {})
    assert one["settings"] == {"zero_optimization": {"stage": 2}}
    assert one["wrong"].startswith("no valid JSON at line 1")


SECRETS = {
    "ds.json": json.dumps({
        "zero_optimization": {"stage": 2},
        "wandb": {"api_key": "hush", "credentials": {"user": "hush", "deep": ["hush"]}, "team": "sk-" + "hush" * 5},
        "comment": "token=hush", "urls": ["https://me:hush@host/x", "password: hush"],
    }),
    "fsdp.yaml": (
        "distributed_type: FSDP\n"
        "api_key: hush\n"
        "secret: |\n  hush: hush\n  more hush\n"
        "password: 'hush\n  also: hush'\n"
        "tokens:\n  - hush\n  - hush\n"
        "servers:\n  - url: https://me:hush@host\n    password: hush\n  - password: hush\n"
        "note: my_token=hush\n"
        "fsdp_config: {hf_token: hush}\n"
    ),
}  # fmt: skip


def test_no_secret_is_kept(tmp_path: Path) -> None:
    for name, content in SECRETS.items():
        (tmp_path / name).write_text(content)
    command = ("torchrun", "--deepspeed", str(tmp_path / "ds.json"), f"--config={tmp_path / 'fsdp.yaml'}")
    manifest = Manifest("1", "train", command, "torchrun", 0, "a", 1)
    write_facts(Place(tmp_path, manifest, "", founder=True), {})
    text = (tmp_path / "env.json").read_text()
    assert "hush" not in text
    assert len(json.loads(text)["configs"]) == 2
