"""Where torch and its friends are observed: one module per thing.

A hook module may have ``install(module, patches)``, called once when the watched module has been imported, and
``activated(active)``, called with every new recorder. What it replaces goes through *patches*; what it hands to torch
is made by :func:`ddiag.capture.door.around` or :func:`ddiag.capture.door.guarded`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

WATCHED: tuple[tuple[str, str], ...] = (
    ("torch.distributed.distributed_c10d", "join"),
    ("torch.distributed.distributed_c10d", "c10d"),
    ("torch._dynamo.trace_rules", "dynamo"),
    ("torch._dynamo.convert_frame", "compiling"),
    ("torch._dynamo.callback", "compiling"),
    ("torch.optim.optimizer", "optimizer"),
    ("torch.utils.data.dataloader", "dataloader"),
    ("torch.autograd", "backward"),
    ("torch.nn.modules.module", "evaluation"),
    ("torch.nn.parallel.distributed", "forward"),
    ("torch.nn.parallel.distributed", "ddp"),
    ("torch.distributed.fsdp._flat_param", "fsdp1"),
    ("torch.distributed.fsdp._runtime_utils", "fsdp1"),
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "fsdp2"),
    ("torch.distributed._composable.fsdp._fsdp_param_group", "fsdp2"),
    ("torch.distributed.pipelining.stage", "pipeline"),
    ("torch.distributed.pipelining.schedules", "pipeline"),
    ("deepspeed.runtime.engine", "deepspeed"),
    ("deepspeed.runtime.zero.stage_1_and_2", "zero"),
    ("deepspeed.runtime.zero.stage3", "zero"),
    ("deepspeed.runtime.zero.partitioned_param_coordinator", "zero"),
    ("deepspeed.runtime.zero.stage3", "zero_swaps"),
    ("deepspeed.runtime.swap_tensor.utils", "zero_swaps"),
    ("deepspeed.runtime.swap_tensor.optimizer_utils", "zero_swaps"),
    ("deepspeed.runtime.swap_tensor.partitioned_param_swapper", "zero_swaps"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "forward"),
    ("torch.distributed.fsdp._fully_shard._fsdp_state", "forward"),
    ("torch.distributed._composable.fsdp._fsdp_state", "forward"),  # torch 2.4 and 2.5
    ("torch.nn.utils.clip_grad", "clip"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "clip"),
    ("torch.amp.grad_scaler", "amp"),
    ("torch.distributed.fsdp.sharded_grad_scaler", "amp"),
    ("torch.serialization", "checkpoint"),
    ("torch.distributed.checkpoint.state_dict_saver", "checkpoint"),
    ("torch.distributed.checkpoint.state_dict_saver", "background_saves"),
    ("safetensors.torch", "checkpoint"),
    ("accelerate.utils.operations", "h2d"),
    ("lightning.fabric.utilities.apply_func", "h2d"),
    ("lightning_fabric.utilities.apply_func", "h2d"),
    ("torch.utils.tensorboard.writer", "logging"),
    ("wandb.sdk.wandb_run", "logging"),
    ("mlflow.tracking.fluent", "logging"),
)
"""(module of torch or of a framework, module of ours). A module may be watched by several."""

ALWAYS: tuple[str, ...] = ("gc_pauses", "memory", "requested", "stacks")
"""Modules of ours that need no module of torch."""


def hook_module(name: str) -> ModuleType:
    return importlib.import_module(f"ddiag.capture.hooks.{name}")
