"""Configurations as text: JSON that may be cut off, and the part of YAML that launchers write; which kind one is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_DEEPSPEED = (
    "zero_optimization", "train_micro_batch_size_per_gpu", "wall_clock_breakdown", "comms_logger",
    "zero_allow_untested_optimizer", "train_batch_size", "activation_checkpointing", "flops_profiler", "aio",
    "steps_per_print",
)  # fmt: skip
_ACCELERATE = ("compute_environment", "distributed_type", "fsdp_config", "deepspeed_config", "num_processes")
_FSDP = (
    "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "transformer_layer_cls_to_wrap", "backward_prefetch",
    "fsdp_backward_prefetch", "fsdp_min_num_params", "min_num_params", "limit_all_gathers", "fsdp_sharding_strategy",
    "fsdp_version", "fsdp_state_dict_type",
)  # fmt: skip
_TRAINER = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "micro_batch_size", "dataloader_num_workers",
    "accelerator", "gradient_checkpointing", "data_parallel_shard_degree", "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
)  # fmt: skip
_KEY_LINE = re.compile(r"^(?P<indent> *)(?P<key>[\w.\-/\"']+):(?:\s+(?P<value>.*?))?\s*$")
_ITEM_LINE = re.compile(r"^(?P<indent> *)- ?(?P<value>.*?)\s*$")
_COMMENT = re.compile(r"\s+#.*$|^\s*#.*$")
_BLOCK = re.compile(r"[|>][+-]?\d*[+-]?")
"""A text of several lines follows."""
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*)(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_MOST_CUTS = 200


def json_object(text: str) -> tuple[dict[str, Any] | None, str]:
    """(the object, what is wrong with it in words); of a text that is cut off, what was complete.

    Comments and trailing commas, which DeepSpeed and accelerate refuse, are told and read over.
    """
    try:
        found = json.loads(text)
        return (found, "") if isinstance(found, dict) else (None, "JSON, but not an object")
    except (json.JSONDecodeError, RecursionError) as error:
        why = f"no valid JSON at line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
    for candidate in _repairs(text):
        try:
            found = json.loads(candidate)
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            return found, why
    return None, why


def _repairs(text: str) -> Iterator[str]:
    clean = re.sub(r"^\s*(?://|#).*$", "", text, flags=re.MULTILINE)
    clean = re.sub(r",(\s*[}\]])", r"\1", clean)
    yield clean
    yield clean[: clean.rfind("}") + 1]
    end = len(clean)
    for _ in range(_MOST_CUTS):
        end = clean.rfind(",", 0, end)
        if end < 0:
            return
        yield clean[:end] + _closing(clean[:end])


def _closing(text: str) -> str:
    """The brackets that *text* left open, in order."""
    open_ones: list[str] = []
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    for mark in bare:
        if mark in "{[":
            open_ones.append("}" if mark == "{" else "]")
        elif mark in "}]" and open_ones:
            open_ones.pop()
    return "".join(reversed(open_ones))


def yaml_mapping(lines: Sequence[str]) -> dict[str, Any]:
    """Nested mappings, lists of scalars, quoted and plain scalars; lines of any other form are passed over."""
    root: dict[str, Any] = {}
    text_at: int | None = None  # indentation of the key whose value the deeper lines below it go on with
    open_maps: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    last: tuple[int, dict[str, Any], str] | None = None
    for raw in lines:
        line = _COMMENT.sub("", raw.replace("\t", "  "))
        if text_at is not None and (not line.strip() or len(line) - len(line.lstrip()) > text_at):
            continue
        text_at = None
        if (item := _ITEM_LINE.match(line)) and last is not None and len(item["indent"]) >= last[0]:
            _, parent, key = last
            kept = parent[key] if isinstance(parent.get(key), list) else []
            parent[key] = [*kept, scalar(item["value"])]
            continue
        found = _KEY_LINE.match(line)
        if found is None:
            continue
        indent, key = len(found["indent"]), found["key"].strip("\"'")
        while open_maps[-1][0] >= indent:
            open_maps.pop()
        parent, value = open_maps[-1][1], found["value"]
        last = (indent, parent, key)
        if value is None or value == "":
            child: dict[str, Any] = {}
            parent[key] = child
            open_maps.append((indent, child))
        else:
            text_at = indent
            if not _BLOCK.fullmatch(value):
                parent[key] = scalar(value)
    return root


def scalar(text: str) -> Any:
    """A YAML scalar: quoted text stays text, words and numbers become what they mean."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text.startswith(("[", "{")):
        inner = text[1:-1].strip()
        return (
            [scalar(part) for part in inner.split(",")] if inner and text[0] == "[" else ([] if text[0] == "[" else {})
        )
    if _NUMBER.fullmatch(text):
        number = text.replace("_", "")
        return int(number) if re.fullmatch(r"[-+]?\d+", number) else float(number)
    return text


def config_kind(keys: Any) -> str:
    """ds_config, accelerate, fsdp_config, trainer, or empty for what is no configuration we know."""
    present = set(keys)
    if "distributed_type" in present or len(present.intersection(_ACCELERATE)) >= 2:
        return "accelerate"
    if present.intersection(_DEEPSPEED[:5]) or len(present.intersection(_DEEPSPEED)) >= 2:
        return "ds_config"
    if _mixed_precision_only(keys):
        return "ds_config"
    if present.intersection(_FSDP):
        return "fsdp_config"
    return "trainer" if present.intersection(_TRAINER) else ""


def _mixed_precision_only(keys: Any) -> bool:
    return isinstance(keys, Mapping) and any(
        isinstance(keys.get(name), Mapping) and "enabled" in keys[name] for name in ("fp16", "bf16")
    )
