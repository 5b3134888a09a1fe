"""DeepSpeed ZeRO-3 on the CPU with what its arguments offload: ``zero_nvme.py OUT SWAPS PARAM OPTIMIZER [pipeline]``.

PARAM and OPTIMIZER are none, cpu or nvme. A layer's part of a rank is a mebibyte in bfloat16: less is not swapped.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from account import Account
from zero_loop import train

SWAPS, PARAM, OPTIMIZER, PIPELINE = sys.argv[2], sys.argv[3], sys.argv[4], len(sys.argv) > 5
STEPS, PASSES, LAYERS, WIDTH = 3, 2, 3, 1024
BUFFER = 2 * WIDTH * WIDTH


def offload(device: str, **more: Any) -> dict[str, Any]:
    return {"device": device, "nvme_path": SWAPS, "buffer_count": 8, "pin_memory": False, **more}


def config() -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": WIDTH * WIDTH,
        "sub_group_size": WIDTH * WIDTH,
    }
    if PARAM != "none":
        zero["offload_param"] = offload(PARAM, buffer_size=BUFFER, max_in_cpu=0)
    if OPTIMIZER != "none":
        zero["offload_optimizer"] = offload(OPTIMIZER, pipeline_read=PIPELINE, pipeline_write=PIPELINE)
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": PASSES,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": OPTIMIZER == "none"}},
    }


def timed(optimizer: Any, name: str) -> list[float]:
    """How long each call of a method takes, in ms."""
    method, took = getattr(optimizer, name), []

    def measured(*args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        try:
            return method(*args, **kwargs)
        finally:
            took.append((time.monotonic() - began) * 1e3)

    setattr(optimizer, name, measured)
    return took


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config())
    optimizer, account = engine.optimizer, Account()
    read = timed(optimizer, "_optimizer_states_and_gradient_swap_in")
    written = timed(optimizer, "_optimizer_states_and_gradient_swap_out")
    train(engine, account, steps=STEPS, passes=PASSES, width=WIDTH)
    groups = optimizer.fp16_groups
    account.more = {
        "read_ms": read,
        "written_ms": written,
        "part": sum(one.partition_numel() for group in groups for one in group),
        "sub_groups": len(groups),
    }
    account.write()
    dist.destroy_process_group()


main()
