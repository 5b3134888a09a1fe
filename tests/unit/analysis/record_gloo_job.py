"""Trains a small model on gloo and profiles it: ``python record_gloo_job.py STRATEGY WORLD OUT`` (needs torch).

Writes ``OUT/rank<k>.json`` and ``OUT/truth.json``: what the script itself knows about its communication. Rank 1 pauses
before every forward.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

LAYERS, WIDTH, BATCH, STEPS = 6, 512, 64, 4
PAUSE_S = 0.15
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)
MICRO_BATCHES = 2


def truth(strategy: str, world: int) -> dict[str, float]:
    """Figures per optimizer step that follow from the model alone."""
    layer_bytes = 4 * (WIDTH * WIDTH + WIDTH)
    if strategy == "fsdp2":
        return {"gathers": 2 * LAYERS, "gather_bytes": layer_bytes, "scatters": LAYERS, "pause_ms": 1000 * PAUSE_S}
    return {"gradient_bytes": 4 * PARAMETERS, "pause_ms": 1000 * PAUSE_S, "micro_batches": MICRO_BATCHES}


def wrapped(strategy: str, world: int) -> nn.Module:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    if strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2)


def train(rank: int, strategy: str, world: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = wrapped(strategy, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    cycle = schedule(wait=1, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=cycle) as profiler:
        for _ in range(STEPS + 2):
            for _ in range(MICRO_BATCHES if strategy == "ddp" else 1):
                if rank == 1:
                    time.sleep(PAUSE_S)
                loss = model(torch.randn(BATCH, WIDTH)).pow(2).mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            metric = loss.detach().clone()
            dist.all_reduce(metric)
            profiler.step()
    profiler.export_chrome_trace(f"{out}/rank{rank}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    chosen, size, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    Path(folder, "truth.json").write_text(json.dumps(truth(chosen, size)))
    mp.spawn(train, (chosen, size, folder), nprocs=size)
