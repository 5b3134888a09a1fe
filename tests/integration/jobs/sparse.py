"""DDP with an embedding whose gradients are sparse: each backward pass reduces one, and the dense layer's bucket."""

from __future__ import annotations

import torch
import torch.distributed as dist
from account import Account
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WORDS, WIDTH, READ = 4, 100, 8, 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    embedding = nn.Embedding(WORDS, WIDTH, sparse=True)
    model = DistributedDataParallel(nn.Sequential(embedding, nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    account = Account()
    losses: list[float] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randint(WORDS, (READ,))).sum()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        account.step += 1
    account.more["losses"] = losses
    account.more["sparse"] = READ * (8 + 4 * WIDTH)
    account.more["dense"] = 4 * (WIDTH * WIDTH + WIDTH)
    account.write()
    dist.destroy_process_group()


main()
