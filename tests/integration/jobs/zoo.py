"""Every operation of c10d, on several groups, synchronous and not, with known sizes; a step after each round."""

from __future__ import annotations

import io
import pickle
import warnings
from typing import Any

import torch
import torch.distributed as dist
from account import Account

N = 1000
FOUR, TWO = 4 * N, 2 * N
"""Bytes of N float32 and bfloat16."""
ROUNDS = 3
LISTS = tuple(map(int, torch.__version__.split(".")[:2])) > (2, 4)
"""gloo scatters and exchanges lists of tensors since some version after 2.4."""

warnings.filterwarnings("ignore", category=FutureWarning)  # of operations that torch would like to be rid of


def plain(account: Account) -> None:
    """What scripts call."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.ones(N)
    dist.all_reduce(x)
    account.called("all_reduce", None, FOUR, FOUR)
    work = dist.all_reduce(torch.ones(N, dtype=torch.bfloat16), async_op=True)
    account.called("all_reduce", None, TWO, TWO)
    work.wait()
    dist.all_gather([torch.empty(N) for _ in range(world)], x)
    account.called("all_gather", None, FOUR, FOUR * world)
    dist.all_gather_into_tensor(torch.empty(N * world), x)
    account.called("all_gather", None, FOUR, FOUR * world)
    dist.reduce_scatter_tensor(torch.empty(N), torch.ones(N * world))
    account.called("reduce_scatter", None, FOUR * world, FOUR)
    dist.broadcast(x, src=1)
    account.called("broadcast", None, FOUR, FOUR, peer=1)
    dist.reduce(x, dst=0)
    account.called("reduce", None, FOUR, FOUR, peer=0)
    dist.all_to_all_single(torch.empty(N * world), torch.ones(N * world))
    account.called("all_to_all", None, FOUR * world, FOUR * world)
    dist.gather(x, [torch.empty(N) for _ in range(world)] if rank == 0 else None, dst=0)
    account.called("gather", None, FOUR, FOUR * world if rank == 0 else 0, peer=0)
    dist.scatter(x, [torch.ones(N) for _ in range(world)] if rank == 0 else None, src=0)
    account.called("scatter", None, FOUR * world if rank == 0 else 0, FOUR, peer=0)
    dist.barrier()
    account.called("barrier", None, 0, 0)


def rarer(account: Account) -> None:
    """Several tensors in one call, lists instead of tensors, uneven exchanges, and objects."""
    rank, world = dist.get_rank(), dist.get_world_size()
    group: Any = dist.group.WORLD
    several = [torch.ones(N), torch.ones(2 * N)]
    dist.all_reduce_coalesced(several)
    account.called("all_reduce", None, 3 * FOUR, 3 * FOUR)
    dist.all_gather_coalesced([[torch.empty(N), torch.empty(2 * N)] for _ in range(world)], several)
    account.called("all_gather", None, 3 * FOUR, 3 * FOUR * world)
    whole = [torch.ones(N * world), torch.ones(2 * N * world)]
    group.allgather_into_tensor_coalesced(whole, several).wait()
    account.called("all_gather", None, 3 * FOUR, 3 * FOUR * world)
    group.reduce_scatter_tensor_coalesced(several, whole).wait()
    account.called("reduce_scatter", None, 3 * FOUR * world, 3 * FOUR)
    with dist._coalescing_manager():
        dist.all_reduce(torch.ones(N))
        dist.all_reduce(torch.ones(N))
    account.called("all_reduce", None, 2 * FOUR, 2 * FOUR)
    if LISTS:
        dist.reduce_scatter(torch.empty(N), [torch.ones(N) for _ in range(world)])
        account.called("reduce_scatter", None, FOUR * world, FOUR)
        dist.all_to_all([torch.empty(N) for _ in range(world)], [torch.ones(N) for _ in range(world)])
        account.called("all_to_all", None, FOUR * world, FOUR * world)
    given = [(rank + 1) * (to + 1) for to in range(world)]
    taken = [(whence + 1) * (rank + 1) for whence in range(world)]
    dist.all_to_all_single(torch.empty(sum(taken)), torch.ones(sum(given)), taken, given)
    account.called("all_to_all", None, 4 * sum(given), 4 * sum(taken))
    dist.all_gather_object([None] * world, {"seventeen": 17})
    account.called("all_gather", None, 8, 8 * world)
    pickled = io.BytesIO()
    pickle.Pickler(pickled).dump({"seventeen": 17})
    size = len(pickled.getvalue())
    account.called("all_gather", None, size, size * world)


def point_to_point(account: Account) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.ones(N)
    if rank == 0:
        dist.send(x, dst=1)
        account.called("send", None, FOUR, 0, peer=1)
        dist.send(x, dst=1)
        account.called("send", None, FOUR, 0, peer=1)
    elif rank == 1:
        dist.recv(x, src=0)
        account.called("recv", None, 0, FOUR, peer=0)
        dist.recv(x)
        account.called("recv", None, 0, FOUR)
    near = (rank + 1) % world
    before = (rank - 1) % world
    ops = [dist.P2POp(dist.isend, x, near), dist.P2POp(dist.irecv, torch.empty(N), before)]
    account.called("send", None, FOUR, 0, peer=near)
    account.called("recv", None, 0, FOUR, peer=before)
    for request in dist.batch_isend_irecv(ops):
        request.wait()


def in_groups(account: Account, mine: dist.ProcessGroup, upper: dist.ProcessGroup) -> None:
    """*mine*: every second rank; *upper*: all but rank 0, so that ranks are in both."""
    rank = dist.get_rank()
    members = dist.get_process_group_ranks(mine)
    first, last = members[0], members[-1]
    x = torch.ones(2 * N)
    dist.all_reduce(x, group=mine)
    account.called("all_reduce", mine, 2 * FOUR, 2 * FOUR)
    dist.broadcast(x, src=last, group=mine)
    account.called("broadcast", mine, 2 * FOUR, 2 * FOUR, peer=last)
    if len(members) == 1:
        return
    if rank == first:
        dist.send(x, dst=last, group=mine)
        account.called("send", mine, 2 * FOUR, 0, peer=last)
    elif rank == last:
        dist.recv(x, src=first, group=mine)
        account.called("recv", mine, 0, 2 * FOUR, peer=first)
    flying = [dist.all_reduce(torch.ones(N), group=mine, async_op=True)]
    account.called("all_reduce", mine, FOUR, FOUR)
    if rank > 0:
        flying.append(dist.all_reduce(torch.ones(3 * N), group=upper, async_op=True))
        account.called("all_reduce", upper, 3 * FOUR, 3 * FOUR)
    for work in reversed(flying):
        work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    even = dist.new_group(list(range(0, world, 2)), group_desc="even")
    odd = dist.new_group(list(range(1, world, 2)), group_desc="odd")
    upper = dist.new_group(list(range(1, world)), group_desc="upper")
    account = Account()
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(ROUNDS):
        plain(account)
        rarer(account)
        point_to_point(account)
        in_groups(account, odd if rank % 2 else even, upper)
        # The process-group hooks do not see this one: the account says so.
        dist.monitored_barrier()
        account.called("barrier", None, 0, 0, monitored=True)
        weight.sum().backward()
        optimizer.step()
        account.step += 1
    account.write()
    dist.destroy_process_group()


main()
