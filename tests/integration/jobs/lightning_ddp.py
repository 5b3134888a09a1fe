"""Lightning's Trainer with DDP on two CPU processes, started by torchrun."""

from __future__ import annotations

import lightning
import torch
from account import Account

BATCHES, ACCUMULATE, WIDTH = 6, 2, 50


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def training_step(self, batch: tuple[torch.Tensor], _index: int) -> torch.Tensor:
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(BATCHES * 2 * 4, WIDTH))
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, accumulate_grad_batches=ACCUMULATE, **quiet
    )
    model = Model()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
    account = Account()
    account.more = {"steps": trainer.global_step, "micro": ACCUMULATE}
    account.more["bytes"] = sum(one.nbytes for one in model.parameters())
    account.write()


main()
