"""What ``torch.compile`` makes of several trainings: graphs, graph breaks and losses, one JSON line each."""

from __future__ import annotations

import json
import os

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, values):
        return self.second(torch.relu(self.first(values)))


def compiled(function, **options):
    return torch.compile(function, backend="eager", **options)


def loop(model, optimizer, step=None):
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        (step or optimizer.step)()
        losses.append(loss.item())
    return losses


def plain():
    model = compiled(Model(), fullgraph=True)
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1))


def around_ddp():
    model = compiled(nn.parallel.DistributedDataParallel(Model()))
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1))


def inside_ddp():
    model = nn.parallel.DistributedDataParallel(compiled(Model(), fullgraph=True))
    return loop(model, torch.optim.SGD(model.parameters(), lr=0.1))


def in_place():
    model = Model()
    model.compile(backend="eager", fullgraph=True)
    return loop(model, torch.optim.AdamW(model.parameters(), lr=0.1))


def optimizer_too():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    return loop(model, optimizer, compiled(optimizer.step))


def whole_step():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @compiled
    def step(values):
        optimizer.zero_grad()
        loss = model(values).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return [step(torch.ones(4, 8)).item() for _ in range(4)]


def evaluation():
    model = Model()

    def look(values):
        model.eval()
        with torch.no_grad():
            return model(values)

    look = compiled(look, fullgraph=True)
    return [look(torch.ones(4, 8)).sum().item() for _ in range(3)]


def main():
    os.environ.update(RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for case in (plain, around_ddp, inside_ddp, in_place, optimizer_too, whole_step, evaluation):
        torch.manual_seed(0)
        torch._dynamo.reset()
        counters.clear()
        result = case()
        stats, breaks = dict(counters["stats"]), sum(counters["graph_break"].values())
        print(json.dumps([case.__name__, stats, breaks, result]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
