"""What host spans are called across frameworks and versions: how time on the host is recognised."""

from __future__ import annotations

import re

_LOADER = re.compile(
    r"enumerate\(DataLoader\)|DataLoaderIter\.__next__|torch/utils/data/dataloader\.py\(\d+\): __next__"
    r"|(?:^|[.:/ #])(?:(?:fetch_)?next_batch|(?:get|load|fetch)_batch|prefetch(?:er)?[._]?next|data_wait)\b"
    r"|nvidia/dali/plugin/\S+\(\d+\): __next__|webdataset/\S+\(\d+\): __iter__"
    r"|IteratorGetNext|Iterator::Root::Prefetch|\[pl\]\[profile\]\S*train_dataloader_next",
    re.IGNORECASE,
)
_COMPILATION = re.compile(
    r"_compile\.compile_inner|\bcompile_fx\b|compile_file|OutputGraph\.call_user_compiler|create_aot_dispatcher_function"
    r"|GraphLowering\.|Scheduler\.codegen|dynamo_timed|convert_frame\.py\(\d+\): _?compile|"
    r"inductor/compile_fx\.py\(\d+\)|triton/compiler/compiler\.py\(\d+\): compile|async_compile\.(?:wait|precompile)"
    r"|entire_frame_compile|backend_compile|inductor_compile|triton_autotune|XlaCompile|TfrtXla|xla::.*Compile",
)
_SYNCHRONISING = re.compile(
    r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero\w*|masked_select|equal|_unique\d?|unique_\w+)$"
)


def is_loader(name: str) -> bool:
    """A wait for the next batch: torch, DALI, webdataset, Lightning, TensorFlow, common names."""
    return _LOADER.search(name) is not None


def is_compilation(name: str) -> bool:
    """A program or kernel is being compiled (TorchDynamo, Inductor, Triton, XLA)."""
    return _COMPILATION.search(name) is not None


def is_synchronising(name: str) -> bool:
    """An operator that cannot return before the device has finished, because its result is or depends on a value."""
    return _SYNCHRONISING.match(name) is not None
