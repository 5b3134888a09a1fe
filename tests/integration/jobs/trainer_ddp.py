"""Hugging Face's Trainer, DDP underneath."""

from __future__ import annotations

import sys

import torch
import transformers
from account import Account

BATCHES, ACCUMULATE, WIDTH = 6, 2, 50


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": out.pow(2).mean(), "logits": out}


def main() -> None:
    data = [{"x": torch.randn(WIDTH)} for _ in range(BATCHES * 2 * 4)]
    arguments = transformers.TrainingArguments(
        output_dir=sys.argv[1],
        use_cpu=True,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=ACCUMULATE,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    model = Model()
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    account = Account()
    account.more = {"steps": trainer.state.global_step, "micro": ACCUMULATE}
    account.more["bytes"] = sum(one.nbytes for one in model.parameters())
    account.write()


main()
