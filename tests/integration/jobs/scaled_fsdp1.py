"""FSDP1 with its own gradient scaler, one rank's loss overflows once: ``scaled_fsdp1.py OUT right|clip_first|late``.

With ``late`` the script has itself recorded, into OUT, when everything is imported.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from account import Account
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

KIND, STEPS, WIDTH, OVERFLOW = sys.argv[2], 6, 64, 3


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    if KIND == "late":
        import ddiag

        ddiag.record(sys.argv[1], name="late")
    model = FullyShardedDataParallel(torch.nn.Linear(WIDTH, WIDTH), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = ShardedGradScaler(device="cpu", init_scale=1024.0)
    norms = []
    for step in range(STEPS):
        loss = model(torch.randn(4, WIDTH)).square().mean()
        scaler.scale(loss * (float("inf") if step == OVERFLOW and dist.get_rank() == 1 else 1.0)).backward()
        if KIND != "clip_first":
            scaler.unscale_(optimizer)
        norms.append(float(model.clip_grad_norm_(1.0)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    account = Account()
    account.more = {"norms": norms}
    account.write()
    dist.destroy_process_group()


main()
