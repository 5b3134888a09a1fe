"""DDP models one after the other, each with another communication hook of the user's."""

import torch
import torch.distributed as dist
from account import Account
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, LAYERS = 4, 100, 6
STARTS_AT = 2
"""The iteration from which PowerSGD compresses."""


def mean_of(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook as users write it. Torch compares its annotations, which must not be texts."""
    work = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def register(model: DistributedDataParallel, name: str) -> None:
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "builtin fp16":
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=STARTS_AT)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, mean_of)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    account = Account()
    account.more["losses"] = losses = []
    for name in ("fp16", "builtin fp16", "powersgd", "own"):
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        size = 25 if name == "powersgd" else 0.1  # with two buckets PowerSGD and gloo's two threads wait for each other
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=size, gradient_as_bucket_view=True)
        register(model, name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            loss = model(torch.randn(4, WIDTH)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
            account.step_ended()
        account.more[f"{name} parameters"] = [one.sum().item().hex() for one in model.parameters()]
    account.logged()
    account.more["bytes"] = sum(one.nbytes for one in model.parameters())
    account.write()
    dist.destroy_process_group()


main()
