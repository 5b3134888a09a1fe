"""DeepSpeed ZeRO on CPU: stage, offloading and the type of summed gradients from the command line."""

from __future__ import annotations

import sys
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from account import Account
from zero_loop import train

STAGE, OFFLOAD, STEPS, SUMS = int(sys.argv[2]), sys.argv[3] == "offload", int(sys.argv[4]), sys.argv[5]
PASSES, LAYERS, WIDTH = 2, 5, 128
"""With five layers on two ranks a parameter lies in both of their parts."""


def config() -> dict[str, object]:
    zero: dict[str, object] = {"stage": STAGE, "reduce_bucket_size": 20_000, "allgather_bucket_size": 20_000}
    if STAGE == 3:
        zero["stage3_param_persistence_threshold"] = 0
    if OFFLOAD:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": PASSES,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": SUMS},
        "zero_optimization": zero,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": not OFFLOAD}},
    }


def parts(optimizer: Any) -> dict[str, Any]:
    """How the engine divided the parameters; numbers of elements."""
    if STAGE == 3:
        every = [one for group in optimizer.fp16_groups for one in group]
        return {"part": sum(one.partition_numel() for one in every), "sub_groups": len(optimizer.fp16_groups)}
    return {
        "part": int(optimizer.partition_size[0]),
        "touched": sum(one.numel() for one in optimizer.params_in_partition[0]),
        "sub_groups": len(optimizer.bit16_groups),
    }


def main() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    elements = sum(one.numel() for one in model.parameters())
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config())
    account = Account()
    train(engine, account, steps=STEPS, passes=PASSES, width=WIDTH)
    account.more = {"global_steps": engine.global_steps, "elements": elements, **parts(engine.optimizer)}
    account.write()
    dist.destroy_process_group()


main()
