"""accelerate with gradient accumulation, DDP underneath."""

from __future__ import annotations

import accelerate
import torch
from account import Account

BATCHES, ACCUMULATE, WIDTH = 6, 2, 50


def main() -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    inner = torch.nn.Linear(WIDTH, WIDTH)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(BATCHES * 2 * 4, WIDTH)), batch_size=4
    )
    model, optimizer, loader = accelerator.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.01), data)
    steps = 0
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
    account = Account()
    account.more = {"steps": steps, "micro": ACCUMULATE, "bytes": sum(one.nbytes for one in inner.parameters())}
    account.write()


main()
