"""Environment variables (``env``, ``export``, launch scripts, printed dicts) and package lists (pip, conda)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import NodeFact, Seen, Setting

_NAME = (
    r"(?:NCCL|TORCH|PYTORCH|CUDA|GLOO|UCX|OMP|MKL|FI|OFI_NCCL|TORCHELASTIC|TORCHINDUCTOR|DEEPSPEED|DS|HIP|RCCL|ROCR|"
    r"NVIDIA|NVTE|KMP|TP|OMPI_MCA)_[A-Z][A-Z0-9_]*|WORLD_SIZE|LOCAL_WORLD_SIZE|LOCAL_RANK|RANK|MASTER_ADDR|MASTER_PORT|"
    r"LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|SLURM_[A-Z_]+"
)
_ASSIGNED = re.compile(rf"(?:^|[\s;(\[{{'\",]|export |-x )({_NAME})=(\"[^\"]*\"|'[^']*'|[^\s;'\"&|)}}\]]*)")
_ADVICE = re.compile(
    r"(?:\b(?:passing|using|use|set|setting|with|and|or|try|trying|by|via|to|be|enable|enabling|adding|add|like|pass|please)"
    r"|consider|e\.g\.)\s+['\"]?$",
    re.IGNORECASE,
)
"""What stands before a variable that a text only speaks of: "consider passing CUDA_LAUNCH_BLOCKING=1"."""
_IN_DICT = re.compile(rf"['\"]({_NAME})['\"]: ?['\"]([^'\"]*)['\"]")
_NAMED = re.compile(rf"\bname: [\"']?({_NAME})[\"']?\s*$")
_VALUE = re.compile(r"^\s*value: [\"']?(.*?)[\"']?\s*$")
_WATCHED = (
    "torch",
    "torchvision",
    "deepspeed",
    "accelerate",
    "transformers",
    "lightning",
    "pytorch-lightning",
    "megatron-core",
    "flash-attn",
    "triton",
    "xformers",
    "trl",
    "peft",
    "vllm",
    "apex",
    "transformer-engine",
    "datasets",
    "numpy",
    "ray",
)
_PACKAGE = re.compile(
    rf"^\s*((?:nvidia-[\w-]+)|{'|'.join(map(re.escape, _WATCHED))})"
    r"(?:==| @ \S*?-|\s{2,}|\s+(?=\d))(\d[\w.+!-]*)"
)


class Environment:
    """Settings of kind env and package."""

    needles: tuple[str, ...] = (
        "NCCL_",
        "TORCH",
        "CUDA_",
        "GLOO_",
        "UCX_",
        "OMP_",
        "MKL_",
        "FI_",
        "DEEPSPEED_",
        "WORLD_SIZE",
        "MASTER_",
        "LOCAL_RANK",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "HIP_",
        "NVTE_",
        "RANK=",
        "nvidia-",
        *(f"{name}{after}" for name in _WATCHED for after in ("==", "  ", " @ ")),
    )

    def line(self, line: Line) -> Iterator[Seen]:
        if "NCCL INFO" in line.text or "NCCL WARN" in line.text or "try setting " in line.text:
            return  # NCCL's own words, or the advice in an out-of-memory text: not what is set
        for name, value in (*_assigned(line.text), *_IN_DICT.findall(line.text)):
            yield Setting("env", name, value.strip("\"'").rstrip(","))
            if name == "CUDA_VISIBLE_DEVICES":
                yield NodeFact("gpu.cuda_visible_devices", value.strip("\"'").rstrip(","))
        yield from _of_a_pod(line)
        package = _PACKAGE.search(line.text)
        if package is not None:
            yield Setting("package", package[1].lower().replace("_", "-"), package[2])

    def end(self) -> Iterable[Seen]:
        return ()


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of assignments; those that a sentence gives as advice, or names in brackets, are none."""
    for found in _ASSIGNED.finditer(text):
        named = found[0].startswith("(") and text[found.end() : found.end() + 1] == ")"
        if not named and not _ADVICE.search(text[max(0, found.start(1) - 24) : found.start(1)].lstrip("`")):
            yield found[1], found[2]


def _of_a_pod(line: Line) -> Iterator[Setting]:
    """``- name: NCCL_DEBUG`` and ``value: INFO`` in the next line, as in Kubernetes' YAML."""
    named = _NAMED.search(line.text)
    after = next(iter(line.following(1)), None) if named is not None else None
    value = _VALUE.search(after.text) if after is not None else None
    if named is not None and value is not None:
        yield Setting("env", named[1], value[1])
