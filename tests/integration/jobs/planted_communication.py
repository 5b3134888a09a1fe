"""A training whose gradients are reduced in one way or another: what ``test_planted_communication.py`` records.

``after``: by hand, one synchronous call per parameter once backward is over, as many scripts do it.
``hooks``: by hand, one synchronous call per parameter as soon as its gradient is there: in backward, and each waits.
``ddp``: by DDP, beside backward.
``none``: not at all (each rank trains its own model).
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CULPRIT = 1
"""The rank that comes late, if one does."""
BUCKET_MB = 4
"""One layer's gradients: the first are reduced while most of backward is still to come."""


class Job:
    """The training loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        width = options.width
        layers = [layer for _ in range(options.layers) for layer in (nn.Linear(width, width), nn.Tanh())]
        bare = nn.Sequential(*layers)
        self.model: nn.Module = bare
        if options.reduce == "ddp":
            self.model = DistributedDataParallel(bare, bucket_cap_mb=BUCKET_MB)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)
        self.batch = torch.randn(options.batch, width)
        if options.reduce == "hooks":
            for parameter in self.model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda one: reduce(one.grad))

    def step(self) -> None:
        options = self.options
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        if options.late_ms and dist.get_rank() == CULPRIT:
            time.sleep(options.late_ms / 1e3)
        loss.backward()
        if options.reduce == "after":
            for parameter in self.model.parameters():
                reduce(parameter.grad)
        self.optimizer.step()
        if options.tell:
            told = loss.detach().clone()
            dist.all_reduce(told)

    def evaluate(self) -> None:
        """Every batch's outputs are gathered, and compared by all: as metrics over all ranks are."""
        self.model.eval()
        with torch.no_grad():
            for _ in range(5):
                found = self.model(self.batch)
                everybody = [torch.empty_like(found) for _ in range(dist.get_world_size())]
                dist.all_gather(everybody, found)
        self.model.train()


def reduce(gradient: torch.Tensor | None) -> None:
    if gradient is not None:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    job = Job(options)
    for number in range(1, options.steps + 1):
        job.step()
        if options.evaluate_every and number % options.evaluate_every == 0:
            job.evaluate()
    dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reduce", choices=("after", "hooks", "ddp", "none"))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--batch", type=int, default=160)
    parser.add_argument("--late-ms", type=float, default=0.0, help="of one rank, before backward")
    parser.add_argument("--tell", action="store_true", help="the mean loss of all ranks in every step")
    parser.add_argument("--evaluate-every", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
