"""Configurations in a recording: what DeepSpeed's engine and FSDP's units took, and files that the command names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddiag.ingest.config_files import config_settings
from ddiag.ingest.recorded_process import Process
from ddiag.model.incident import Setting

_ENGINE = {
    "zero_optimization_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "gradient_clipping": "gradient_clipping",
    "zero_overlap_comm": "zero_optimization.overlap_comm",
    "zero_contiguous_gradients": "zero_optimization.contiguous_gradients",
    "zero_reduce_bucket_size": "zero_optimization.reduce_bucket_size",
    "zero_allgather_bucket_size": "zero_optimization.allgather_bucket_size",
    "zero_prefetch_bucket_size": "zero_optimization.stage3_prefetch_bucket_size",
    "zero_offload_optimizer": "zero_optimization.offload_optimizer",
    "zero_offload_param": "zero_optimization.offload_param",
    "fp16_enabled": "fp16.enabled",
    "bfloat16_enabled": "bf16.enabled",
}
"""Method of the engine -> key of the configuration. The product of the batch sizes is the engine's own arithmetic."""
_UNITS = {"backward_prefetch": "backward_prefetch", "limit_all_gathers": "limit_all_gathers", "api": "version"}
_SETTLED = ("train_batch_size", "gradient_accumulation_steps", "mixed_precision")
"""Whatever files say of these, an engine was built with values of its own, and they fit together."""
_FILL_IN = ("transformers", "accelerate", "lightning", "pytorch-lightning")
"""Packages that replace the word ``auto``."""


def engine_settings(process: Process, *, on_device: bool) -> Iterator[Setting]:
    """What the engine took, in the words of its configuration."""
    told = process.facts.settings
    stage = told.get("deepspeed.zero_optimization_stage")
    if stage is None:
        return
    for method, key in _ENGINE.items():
        for name, value in told.items():
            inner = name.removeprefix(f"deepspeed.{method}")
            if inner == name or inner[:1] not in ("", "."):
                continue
            by_default = method == "zero_overlap_comm" and value == "false" and stage != "3"
            if by_default or (inner == ".pin_memory" and not on_device):
                continue  # nobody chose it; there is nothing to pin for
            yield Setting("ds_config", f"{key}{inner}", value, source=process.sources.label)


def unit_settings(process: Process, *, on_device: bool) -> Iterator[Setting]:
    """What FSDP's units took. On a CPU nothing is prefetched or offloaded."""
    told = process.facts.settings
    if not on_device or "fsdp.api" not in told:
        return
    for name, key in _UNITS.items():
        if f"fsdp.{name}" in told:
            yield Setting("fsdp", key, told[f"fsdp.{name}"], source=process.sources.label)
    if told.get("fsdp.offload") == "CPUOffloadPolicy" or told.get("fsdp.offload_params") == "true":
        yield Setting("fsdp", "offload_params", "true", source=process.sources.label)
    if "fsdp.strategy" in told:
        yield Setting("fsdp", "sharding_strategy", told["fsdp.strategy"], source=process.sources.label)


def named_settings(
    files: Iterable[Mapping[str, Any]], processes: Sequence[Process], argv: Sequence[str]
) -> Iterator[Setting]:
    """Settings of the files that the command names, but for what the command or the job itself proves void."""
    trained = any(process.step_count for process in processes)
    engine = any("deepspeed.zero_optimization_stage" in process.facts.settings for process in processes)
    units = any("fsdp.api" in process.facts.settings for process in processes)
    filled = engine or any(
        name in process.facts.process.get("packages", ()) for process in processes for name in _FILL_IN
    )
    options = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    unused = {kind for kind, used in (("ds_config", engine), ("fsdp", units)) if trained and not used}
    seen = set()
    for file in files:
        path, settings, wrong = (file.get(name) for name in ("path", "settings", "wrong"))
        if not isinstance(settings, Mapping) or path in seen:
            continue
        seen.add(path)
        for one in config_settings(settings, str(path)):
            last = one.key.rpartition(".")[2]
            void = (
                bool({last, f"fsdp_{last}"} & options)
                or (filled and one.value == "auto")
                or (engine and last in _SETTLED)
            )
            if not void and one.kind not in unused:
                yield one
        if wrong and not trained:
            yield Setting("config_error", "json", str(wrong), source=str(path))
