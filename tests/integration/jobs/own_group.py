"""DDP on a process group written in Python, which passes calls on to gloo and counts them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from account import Account
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH = 5, 50


class Counting(dist.ProcessGroup):
    """As vendors' and users' own backends are made: a subclass in Python."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._inner = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.calls: list[list[Any]] = []

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "counting"

    def _pass_on(self, name: str, tensors: Any, arguments: tuple[Any, ...]) -> Any:
        self.calls.append([name, sum(one.nbytes for one in _flat(tensors))])
        return getattr(self._inner, name)(*arguments)

    def allreduce(self, *arguments: Any) -> Any:
        return self._pass_on("allreduce", arguments[0], arguments)

    def broadcast(self, *arguments: Any) -> Any:
        return self._pass_on("broadcast", arguments[0], arguments)

    def allgather(self, *arguments: Any) -> Any:
        return self._pass_on("allgather", arguments[1], arguments)

    def barrier(self, *arguments: Any) -> Any:
        return self._pass_on("barrier", [], arguments)


def _flat(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else [one for each in tensors for one in _flat(each)]


def main() -> None:
    torch.set_num_threads(1)
    dist.Backend.register_backend("counting", Counting, devices=["cpu"])
    dist.init_process_group("counting")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    account = Account()
    losses: list[str] = []
    for _ in range(STEPS):
        loss = model(torch.randn(4, WIDTH)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        account.step_ended()
    account.more = {"losses": losses, "passed on": dist.group.WORLD.calls}
    account.write()
    dist.destroy_process_group()


main()
