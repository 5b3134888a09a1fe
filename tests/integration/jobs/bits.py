"""Trains, and writes down everything a recorder could have changed, to the bit: ``bits.py OUT ddp|fsdp2|zero2``."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

OUT, KIND = Path(sys.argv[1]), sys.argv[2]
STEPS, ACCUMULATE, WIDTH, BATCH = 12, 2, 64, 8
"""More steps than the sampling tier looks at in a row: it comes and goes in between."""
Step = Callable[[torch.Tensor, bool], torch.Tensor]
seen: dict[str, list[str]] = {"gradients": [], "random states": [], "python's": [], "numpy's": []}
"""Gradients of every update, states of the random generators after every batch."""


def noise() -> torch.Tensor:
    """A row drawn from the generators that a recorder must not touch."""
    return torch.randn(WIDTH) + random.random() + np.random.random()


class Noise(Dataset[torch.Tensor]):
    """Rows that worker processes draw."""

    def __len__(self) -> int:
        return STEPS * ACCUMULATE * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        return noise()


def network() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Tanh())]
    return nn.Sequential(*layers)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    seen["gradients"].append(digest(one.grad for one in model.parameters()))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def ddp() -> tuple[nn.Module, Step]:
    model = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(batch: torch.Tensor, last: bool) -> torch.Tensor:
        model.require_backward_grad_sync = last
        loss = model(batch).square().mean()
        loss.backward()
        if last:
            update(model, optimizer)
        return loss

    return model, step


def fsdp2() -> tuple[nn.Module, Step]:
    from torch.distributed.fsdp import fully_shard

    model: Any = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(batch: torch.Tensor, last: bool) -> torch.Tensor:
        model.set_requires_gradient_sync(last)
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()
        if last:
            update(model, optimizer)
        return loss

    return model, step


def zero2() -> tuple[nn.Module, Step]:
    import deepspeed
    from deepspeed.utils import safe_get_full_grad

    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": ACCUMULATE,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 20_000},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    model = network()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(batch: torch.Tensor, last: bool) -> torch.Tensor:
        loss: torch.Tensor = engine(batch.bfloat16()).float().square().mean()
        engine.backward(loss)
        if last:
            seen["gradients"].append(digest(safe_get_full_grad(one) for one in model.parameters()))
        engine.step()
        return loss

    return engine, step


def digest(tensors: Iterable[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    if KIND != "zero2":
        dist.init_process_group("gloo")
    model, step = {"ddp": ddp, "fsdp2": fsdp2, "zero2": zero2}[KIND]()
    torch.manual_seed(10 + dist.get_rank())
    losses = []
    batches = DataLoader(Noise(), batch_size=BATCH, shuffle=True, num_workers=2)
    for number, batch in enumerate(batches):
        losses.append(step(batch + noise(), number % ACCUMULATE == ACCUMULATE - 1).item().hex())
        seen["random states"].append(digest([torch.get_rng_state()]))
        seen["python's"].append(hashlib.sha256(repr(random.getstate()).encode()).hexdigest())
        seen["numpy's"].append(hashlib.sha256(repr(np.random.get_state()).encode()).hexdigest())
    found = {**seen, "losses": losses, "parameters": digest(model.parameters())}
    (OUT / f"bits{dist.get_rank()}.json").write_text(json.dumps(found, indent=1))
    dist.destroy_process_group()


main()
