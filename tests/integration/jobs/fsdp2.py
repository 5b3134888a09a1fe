"""FSDP2: one unit per layer, nested units, or a mesh of replicas and shards (HSDP)."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from account import Account
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

KIND = sys.argv[2]
STEPS, WIDTH, LAYERS = 3, 64, 4


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def shard(model: torch.nn.Sequential) -> None:
    world = dist.get_world_size()
    if KIND == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        if KIND == "nested":
            fully_shard(layer.up, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
    shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    account = Account()
    for _ in range(STEPS):
        model(torch.randn(4, WIDTH)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        account.step_ended()
    account.logged()
    account.write()
    dist.destroy_process_group()


main()
