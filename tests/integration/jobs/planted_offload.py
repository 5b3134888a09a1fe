"""A DeepSpeed training whose optimizer is offloaded to the CPU, as ``test_planted.py`` records it.

The optimizer gets as many threads as it is told: in a container with two CPUs, OpenMP's default is that of the whole
host, and hundreds of threads wait for each other by turns.
"""

from __future__ import annotations

import sys

import deepspeed
import torch
import torch.distributed as dist

WIDTH, LAYERS, STEPS = 512, 4, 20
OPTIMIZER_THREADS, BATCH = (int(one) for one in sys.argv[1:])


def give_threads(optimizer: torch.optim.Optimizer) -> None:
    """Its own number of threads for the update; everything else has one."""
    step = optimizer.step

    def with_threads(*args: object, **kwargs: object) -> object:
        torch.set_num_threads(OPTIMIZER_THREADS)
        try:
            return step(*args, **kwargs)
        finally:
            torch.set_num_threads(1)

    optimizer.step = with_threads


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
    give_threads(engine.optimizer.optimizer)
    batch = torch.randn(BATCH, WIDTH, dtype=torch.bfloat16)
    for _ in range(STEPS):
        engine.backward(engine(batch).float().square().mean())
        engine.step()
    dist.destroy_process_group()


main()
