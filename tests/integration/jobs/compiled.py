"""A compiled model meets shapes: ``compiled.py OUT always|once|one_rank|never``.

``always`` compiles for every new length (``dynamic=False``), ``one_rank`` on rank 1 only; ``once`` leaves torch its
default, a graph for all lengths at the second one; ``never`` has one length.
"""

from __future__ import annotations

import sys

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn

KIND = sys.argv[2]
STEPS, EVERY, WIDTH = 48, 4, 256


def length(step: int) -> int:
    """Of a batch; every fourth is one of its own."""
    changes = step % EVERY == EVERY - 1 and KIND != "never"
    return 1024 + (step if changes and (KIND != "one_rank" or dist.get_rank() == 1) else 0)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = torch._dynamo.config
    setattr(config, "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit", 2 * STEPS)
    layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    dynamic = False if KIND in ("always", "one_rank") else None
    compiled = torch.compile(model, backend="aot_eager", dynamic=dynamic)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(STEPS):
        compiled(torch.ones(length(step), WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
