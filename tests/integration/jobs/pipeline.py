"""A pipeline of as many stages as ranks, with the 1F1B schedule."""

from __future__ import annotations

import torch
import torch.distributed as dist
from account import Account
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STEPS, WIDTH, CHUNKS, BATCH = 3, 32, 4, 8


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = torch.nn.Linear(WIDTH, WIDTH)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, CHUNKS, loss_fn=lambda out, target: (out - target).pow(2).mean())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    account = Account()
    for _ in range(STEPS):
        if rank == 0:
            schedule.step(torch.randn(BATCH, WIDTH))
        elif rank == world - 1:
            schedule.step(target=torch.randn(BATCH, WIDTH))
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        account.step_ended()
    account.more = {"chunk_bytes": BATCH // CHUNKS * WIDTH * 4, "chunks": CHUNKS, "steps": STEPS}
    account.write()
    dist.destroy_process_group()


main()
