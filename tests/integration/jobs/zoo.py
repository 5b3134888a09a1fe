"""Every kind of collective, on several groups, synchronous and not, with known sizes; a step after each round."""

from __future__ import annotations

import torch
import torch.distributed as dist
from account import Account

N = 1000
ROUNDS = 3


def round_of(account: Account, pair: dist.ProcessGroup, other: dist.ProcessGroup) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    four, two = 4 * N, 2 * N
    x = torch.ones(N)
    dist.all_reduce(x)
    account.called("all_reduce", None, four, four)
    work = dist.all_reduce(torch.ones(N, dtype=torch.bfloat16), async_op=True)
    account.called("all_reduce", None, two, two)
    work.wait()
    dist.all_gather([torch.empty(N) for _ in range(world)], x)
    account.called("all_gather", None, four, four * world)
    dist.all_gather_into_tensor(torch.empty(N * world), x)
    account.called("all_gather", None, four, four * world)
    dist.reduce_scatter_tensor(torch.empty(N), torch.ones(N * world))
    account.called("reduce_scatter", None, four * world, four)
    dist.broadcast(x, src=1)
    account.called("broadcast", None, four, four)
    dist.reduce(x, dst=0)
    account.called("reduce", None, four, four)
    dist.all_to_all_single(torch.empty(N * world), torch.ones(N * world))
    account.called("all_to_all", None, four * world, four * world)
    dist.gather(x, [torch.empty(N) for _ in range(world)] if rank == 0 else None, dst=0)
    account.called("gather", None, four, four * world if rank == 0 else 0)
    dist.scatter(x, [torch.ones(N) for _ in range(world)] if rank == 0 else None, src=0)
    account.called("scatter", None, four * world if rank == 0 else 0, four)
    dist.barrier()
    account.called("barrier", None, 0, 0)
    group = pair if rank in dist.get_process_group_ranks(pair) else other
    dist.all_reduce(torch.ones(2 * N), group=group)
    account.called("all_reduce", group, 2 * four, 2 * four)
    if rank == 0:
        dist.send(x, dst=1)
        account.called("send", None, four, 0)
    elif rank == 1:
        dist.recv(x, src=0)
        account.called("recv", None, 0, four)
    near = (rank + 1) % world
    before = (rank - 1) % world
    ops = [dist.P2POp(dist.isend, x, near), dist.P2POp(dist.irecv, torch.empty(N), before)]
    account.called("send", None, four, 0)
    account.called("recv", None, 0, four)
    for request in dist.batch_isend_irecv(ops):
        request.wait()


def main() -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    half = max(1, world // 2)
    pair = dist.new_group(list(range(half)), group_desc="first_half")
    other = dist.new_group(list(range(half, world)), group_desc="second_half")
    account = Account()
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(ROUNDS):
        round_of(account, pair, other)
        weight.sum().backward()
        optimizer.step()
        account.step += 1
    account.write()
    dist.destroy_process_group()


main()
