"""A training beside whose backward and optimizer a second thread issues collectives of its own, on its own group."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from account import Account

STEPS, EACH, N, WIDTH = 8, 5, 10, 50


def beside(group: dist.ProcessGroup, sums: list[float]) -> None:
    for number in range(EACH):
        x = torch.full((N,), float(number))
        dist.all_reduce(x, group=group)
        sums.append(x.sum().item())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    second = dist.new_group([0, 1], group_desc="second_thread")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    account = Account()
    losses: list[str] = []
    sums: list[float] = []
    for _ in range(STEPS):
        thread = threading.Thread(target=beside, args=(second, sums))
        thread.start()
        loss = model(torch.randn(4, WIDTH)).pow(2).mean()
        loss.backward()
        for one in model.parameters():
            dist.all_reduce(one.grad)
        thread.join()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        account.step_ended()
    account.logged()
    account.more = {"losses": losses, "sums": sums}
    account.write()
    dist.destroy_process_group()


main()
