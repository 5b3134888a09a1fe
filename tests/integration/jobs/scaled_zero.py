"""ZeRO in fp16, whose gradients overflow once: ``scaled_zero.py OUT STAGE``; says what DeepSpeed itself tells."""

from __future__ import annotations

import sys

import deepspeed
import torch
import torch.distributed as dist
from account import Account
from deepspeed.accelerator import get_accelerator

STAGE, STEPS, WIDTH, OVERFLOW = int(sys.argv[2]), 6, 64, 3
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1},
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": STAGE},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
}


def main() -> None:
    # DeepSpeed asks mkldnn for fp16 on a CPU; torch computes it without.
    accelerator = get_accelerator()
    accelerator.is_fp16_supported = lambda: True
    accelerator.supported_dtypes = lambda: [torch.float32, torch.bfloat16, torch.float16]
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    scales, norms = [], []
    for step in range(STEPS):
        scales.append(float(engine.optimizer.cur_scale))
        loss = engine(torch.randn(4, WIDTH, dtype=torch.float16)).float().square().mean()
        engine.backward(loss * (1e9 if step == OVERFLOW else 1.0))
        engine.step()
        norms.append(float(engine.get_global_grad_norm()))
    account = Account()
    account.more = {"scales": scales, "norms": norms, "skipped": engine.skipped_steps}
    account.write()
    dist.destroy_process_group()


main()
