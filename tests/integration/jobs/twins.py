"""Two DDP models of one shape in one group, as twin critics are: both forward passes, then both backward passes."""

import torch
import torch.distributed as dist
from account import Account
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, LAYERS = 5, 100, 4


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    account = Account()
    account.more["losses"] = losses = []
    twins = [
        DistributedDataParallel(
            torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))), bucket_cap_mb=0.03
        )
        for _ in range(2)
    ]
    optimizer = torch.optim.SGD([one for twin in twins for one in twin.parameters()], lr=0.01)
    for _ in range(STEPS):
        batch = torch.randn(4, WIDTH)
        both = [twin(batch).pow(2).mean() for twin in twins]
        for loss in both:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.item().hex() for loss in both]
        account.step_ended()
    account.logged()
    account.write()
    dist.destroy_process_group()


main()
