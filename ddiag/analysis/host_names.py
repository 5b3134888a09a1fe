"""What host spans are called across frameworks and versions: how time on the host is recognised."""

from __future__ import annotations

import re
from functools import lru_cache

_once_per_name = lru_cache(maxsize=1 << 16)
"""The same few thousand names come back on every rank."""


def _any_of(*patterns: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile("|".join(patterns), flags)


_LOADER = _any_of(
    r"enumerate\(DataLoader\)",
    r"DataLoaderIter\.__next__",
    r"torch/utils/data/dataloader\.py\(\d+\): __next__",
    r"(?:^|[.:/ #])(?:(?:fetch_)?next_batch|(?:get|load|fetch)_batch|prefetch(?:er)?[._]?next|data_wait)\b",
    r"nvidia/dali/plugin/\S+\(\d+\): __next__",
    r"webdataset/\S+\(\d+\): __iter__",
    r"prefetch\w*\.py\(\d+\): (?:next|__next__)$",
    r"(?<!MultiDevice)IteratorGetNext",
    r"\[pl\]\[profile\]\S*train_dataloader_next",
    flags=re.IGNORECASE,
)
_SINGLE_PROCESS = _any_of(r"_SingleProcessDataLoaderIter", r"torch/utils/data/_utils/fetch\.py\(\d+\): fetch")
_WORKER_PROCESSES = _any_of(
    r"_MultiProcessingDataLoaderIter", r"torch/utils/data/dataloader\.py\(\d+\): _(?:try_)?get_data"
)
_COMPILATION = _any_of(
    r"^dynamo$",
    r"entire_(?:frame|backward)_compile",
    r"_compile\.compile_inner",
    r"backend_compile",
    r"create_aot_dispatcher_function",
    r"_dynamo/convert_frame\.py\(\d+\): _?compile",
    r"_inductor/compile_fx\.py\(\d+\)",
    r"\bcompile_fx\b",
    r"GraphLowering\.",
    r"Scheduler\.codegen",
    r"async_compile\.(?:wait|precompile)",
    r"triton/compiler/compiler\.py\(\d+\): compile",
    r"triton_autotun",
    r"XlaCompile|TfrtXla|XLA.*(?:::| )Compile",
)
_COLLECTION = _any_of(r"^<built-in function collect>$", r"\bgc\.collect\b", r"^(?:Python )?GC(?: \(.*\))?$")
_SAVE = _any_of(
    r"torch/serialization\.py\(\d+\): save$",
    r"distributed/checkpoint/\S+\(\d+\): (?:async_)?save",
    r"distributed/checkpoint/state_dict\.py\(\d+\): get_\w*state_dict$",
    r"save_checkpoint\b|save_pretrained$|: save_file$|: save_(?:state|model)$",
    r"checkpoint_engine\S*: (?:save|commit)$",
    r"^(?:checkpoint(?:ing)?_save|save_ckpt)$",
    flags=re.IGNORECASE,
)
_LOGGING = _any_of(
    r"^<built-in function print>$",
    r"wandb/\S*: (?:_?log|_partial_history\w*)$",
    r"tensorboard\S*: (?:add_\w+|flush)$",
    r"logging/__init__\.py\(\d+\): (?:debug|info|warning|error|log|_log)$",
    r"(?:mlflow|comet_ml)/\S*: log_\w+$|clearml/\S*: report_\w+$|neptune/\S*: (?:log|append)$",
    r"tqdm/std\.py\(\d+\): (?:refresh|display|update|set_postfix\w*)$|rich/\S*: (?:print|refresh)$",
    r"loggers/\S*: log_metrics$|trainer\S*: _?(?:maybe_)?log(?:_save_evaluate)?$",
    r"^(?:log(?:ging)?|log_metrics)$",
)
_SYNCHRONISING = re.compile(
    r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero\w*|masked_select|equal|_unique\d?|unique_\w+)$"
)


@_once_per_name
def is_loader(name: str) -> bool:
    """A wait for the next batch: torch, DALI, webdataset, Lightning, TensorFlow, common names."""
    return _LOADER.search(name) is not None


def is_pooled_loader(name: str) -> bool:
    """A wait for the next batch that the framework runs on whichever thread of a pool is free (TensorFlow)."""
    return name.startswith("Iterator") and is_loader(name)


def is_optimizer(name: str) -> bool:
    """PyTorch's own annotation of an optimizer's step or zero_grad."""
    return name.startswith(("Optimizer.step#", "Optimizer.zero_grad#"))


@_once_per_name
def loader_in_process(name: str) -> bool | None:
    """True when *name* shows batches made in the training process, False when worker processes make them."""
    if _SINGLE_PROCESS.search(name):
        return True
    return False if _WORKER_PROCESSES.search(name) else None


@_once_per_name
def is_compilation(name: str) -> bool:
    """A program or kernel is being compiled (TorchDynamo, Inductor, Triton, XLA)."""
    return _COMPILATION.search(name) is not None


@_once_per_name
def is_garbage_collection(name: str) -> bool:
    """Python collects garbage on this thread."""
    return _COLLECTION.search(name) is not None


@_once_per_name
def is_save(name: str) -> bool:
    """A checkpoint is being gathered or written."""
    return _SAVE.search(name) is not None


@_once_per_name
def is_logging(name: str) -> bool:
    """Metrics or messages are being written."""
    return _LOGGING.search(name) is not None


@_once_per_name
def is_synchronising(name: str) -> bool:
    """An operator that cannot return before the device has finished, because its result is or depends on a value."""
    return _SYNCHRONISING.match(name) is not None
