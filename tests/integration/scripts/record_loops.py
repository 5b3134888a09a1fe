"""Trainings that count for themselves what they do: ``record_loops.py FOLDER LOOP`` writes FOLDER/truth-RANK.json."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER, LOOP = Path(sys.argv[1]), sys.argv[2]


def model_and_optimizer():
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def loader(batches, **options):
    return DataLoader(TensorDataset(torch.randn(batches * 4, 16)), batch_size=4, **options)


def plain(told):
    model, optimizer = model_and_optimizer()
    for (batch,) in loader(6):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        told["micro_steps"].append(1)


def accumulation(told):
    model, optimizer = model_and_optimizer()
    for k, (batch,) in enumerate(loader(12)):
        model(batch).mean().backward()
        if k % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
            told["micro_steps"].append(3)


def two_optimizers(told):
    first, first_optimizer = model_and_optimizer()
    second, second_optimizer = model_and_optimizer()
    for (batch,) in loader(5):
        for model, optimizer in ((first, first_optimizer), (second, second_optimizer)):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
        told["micro_steps"].append(2)


def scaler(told):
    model, optimizer = model_and_optimizer()
    scaling = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for k, (batch,) in enumerate(loader(6)):
        optimizer.zero_grad()
        loss = model(batch).mean()
        before = scaling.get_scale()
        scaling.scale(loss * float("inf") if k in (0, 3) else loss).backward()
        scaling.unscale_(optimizer)
        told["grad_norm"].append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        scaling.step(optimizer)
        scaling.update()
        told["micro_steps"].append(1)
        told["loss_scale"].append(before)
        told["skipped"].append(scaling.get_scale() < before)


def manual(told):
    """No DataLoader, no zero_grad, a pause where the batch is made."""
    model, optimizer = model_and_optimizer()
    for _ in range(5):
        time.sleep(0.01)
        batch = torch.randn(4, 16)
        model(batch).mean().backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
        told["micro_steps"].append(1)


def evaluation(told):
    model, optimizer = model_and_optimizer()
    held_out = loader(3)
    for k, (batch,) in enumerate(loader(6)):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        told["micro_steps"].append(1)
        if k % 2 == 1:
            model.eval()
            with torch.no_grad():
                for (unseen,) in held_out:
                    model(unseen)
            model.train()
            torch.save(model.state_dict(), FOLDER / f"checkpoint-{dist.get_rank()}.pt")
            told["evaluations"] += 1


def fsdp2(told):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for (batch,) in loader(4):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        told["micro_steps"].append(1)


def main():
    dist.init_process_group("gloo")
    told = {"micro_steps": [], "skipped": [], "loss_scale": [], "grad_norm": [], "evaluations": 0}
    {one.__name__: one for one in (plain, accumulation, two_optimizers, scaler, manual, evaluation, fsdp2)}[LOOP](told)
    (FOLDER / f"truth-{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
