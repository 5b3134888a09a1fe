"""DeepSpeed ZeRO on CPU: stage and offload from the command line."""

from __future__ import annotations

import sys

import deepspeed
import torch
import torch.distributed as dist
from account import Account

STAGE, OFFLOAD, STEPS = int(sys.argv[2]), sys.argv[3] == "offload", int(sys.argv[4])


def config() -> dict[str, object]:
    zero: dict[str, object] = {"stage": STAGE, "reduce_bucket_size": 20_000, "allgather_bucket_size": 20_000}
    if STAGE == 3:
        zero["stage3_param_persistence_threshold"] = 0
    if OFFLOAD:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": not OFFLOAD}},
    }


def main() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(128, 128) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config())
    account = Account()
    losses = []
    for _ in range(2 * STEPS):
        loss = engine(torch.randn(4, 128, dtype=torch.bfloat16)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    account.more = {"losses": losses, "global_steps": engine.global_steps}
    account.write()
    dist.destroy_process_group()


main()
