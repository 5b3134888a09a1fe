"""Trainings written for frameworks: ``record_frameworks.py FOLDER FRAMEWORK [api]`` writes FOLDER/truth-RANK.json.

With ``api`` ddiag is called from the script (its callback, or ``ddiag.record``) instead of from the launch line. After
the training each rank calls a few collectives more, which a callback must not record: it is over by then.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER, FRAMEWORK = Path(sys.argv[1]), sys.argv[2]
API = sys.argv[3:] == ["api"]
LATER = 3
LOSSES = []


def noted(loss):
    """As the training computes it, to the bit."""
    LOSSES.append(loss.item().hex())
    return loss


def dataset(items):
    return TensorDataset(torch.randn(items, 8))


def lightning_fit():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def training_step(self, batch, _index):
            return noted(self.layer(batch[0]).square().mean())

        def validation_step(self, batch, _index):
            self.layer(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callbacks = []
    if API:
        import ddiag

        callbacks = [ddiag.LightningCallback(out=FOLDER, name="api")]
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        default_root_dir=FOLDER,
        enable_checkpointing=False,
    )
    module = Module()
    trainer.fit(module, DataLoader(dataset(64), batch_size=4), DataLoader(dataset(16), batch_size=4))
    return trainer.global_step, module


def trainer_train():
    import transformers

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def forward(self, values):
            return {"loss": noted(self.layer(values).square().mean())}

    callbacks = []
    if API:
        import ddiag

        callbacks = [ddiag.TrainerCallback(out=FOLDER, name="api")]
    arguments = transformers.TrainingArguments(
        output_dir=str(FOLDER / "out"),
        max_steps=6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    model = Model()
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"values": torch.randn(8)} for _ in range(128)],
        callbacks=callbacks,
    )
    trainer.train()
    return trainer.state.global_step, model


def accelerate_loop():
    if API:
        import ddiag

        ddiag.record(out=FOLDER, name="api")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(dataset(64), batch_size=4))
    steps = 0
    for (batch,) in batches:
        with accelerator.accumulate(model):
            accelerator.backward(noted(model(batch).square().mean()))
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
    return steps, model


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps, model = {"lightning": lightning_fit, "transformers": trainer_train, "accelerate": accelerate_loop}[
        FRAMEWORK
    ]()
    for _ in range(LATER):
        dist.all_reduce(torch.ones(LATER))
    rank = dist.get_rank()
    told = {
        "rank": rank,
        "pid": os.getpid(),
        "steps": steps,
        "micro_steps": 2,
        "losses": LOSSES,
        "parameters": [one.detach().flatten().tolist() for one in model.parameters()],
        "bytes": sum(one.nbytes for one in model.parameters()),
        "later": LATER,
        "later_bytes": 4 * LATER,
    }
    (FOLDER / f"truth-{rank}.json").write_text(json.dumps(told))
