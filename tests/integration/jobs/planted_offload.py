"""A DeepSpeed training whose optimizer is offloaded to the CPU, as ``test_planted.py`` records it.

The update has one thread, as everything has where torchrun sets OMP_NUM_THREADS=1. Whether that starves the job depends
on how much there is to compute per update.
"""

from __future__ import annotations

import sys

import deepspeed
import torch
import torch.distributed as dist

LAYERS, STEPS = 4, 20
WIDTH, BATCH = int(sys.argv[1]), int(sys.argv[2])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    batch = torch.randn(BATCH, WIDTH, dtype=torch.bfloat16)
    for _ in range(STEPS):
        engine.backward(engine(batch).float().square().mean())
        engine.step()
    dist.destroy_process_group()


main()
