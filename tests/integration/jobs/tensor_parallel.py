"""DTensor tensor parallelism: collectives come from C++ (functional collectives) alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from account import Account
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS, WIDTH, LAYERS = 3, 64, 2


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    account = Account()
    for _ in range(STEPS):
        model(torch.randn(4, WIDTH, requires_grad=True)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        account.step_ended()
    account.logged()
    account.write()
    dist.destroy_process_group()


main()
