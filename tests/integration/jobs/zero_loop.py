"""The training loop of the DeepSpeed jobs."""

from __future__ import annotations

from typing import Any

import torch
from account import Account


def train(engine: Any, account: Account, *, steps: int, passes: int, width: int) -> None:
    """*steps* optimizer steps of *passes* accumulated backward passes each."""
    for number in range(passes * steps):
        loss = engine(torch.randn(4, width, dtype=torch.bfloat16)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        if number % passes == passes - 1:
            account.step_ended()
    account.logged()
