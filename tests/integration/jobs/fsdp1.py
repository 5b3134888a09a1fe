"""FSDP1 on CPU, one unit per layer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from account import Account
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

STEPS, WIDTH, LAYERS = 3, 64, 3


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inner = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), torch.nn.LayerNorm(WIDTH))
    policy = ModuleWrapPolicy({torch.nn.Linear})
    model = FullyShardedDataParallel(inner, auto_wrap_policy=policy, device_id=torch.device("cpu"))
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
