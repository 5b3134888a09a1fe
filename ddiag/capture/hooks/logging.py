"""Metric logging from the training loop: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

from types import ModuleType

from ddiag.capture.hooks.spans import as_phase
from ddiag.capture.patches import Patches
from ddiag.schema.phases import Phase

_SUMMARY_WRITER = (
    *("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure", "add_video", "add_text"),
    *("add_hparams", "add_embedding", "flush"),
)
_MLFLOW = ("log_metric", "log_metrics")


def install(module: ModuleType, patches: Patches) -> None:
    if module.__name__ == "torch.utils.tensorboard.writer":
        for name in _SUMMARY_WRITER:
            patches.replace(module.SummaryWriter, name, as_phase(Phase.LOGGING, f"SummaryWriter.{name}"))
    elif module.__name__ == "wandb.sdk.wandb_run":
        patches.replace(module.Run, "log", as_phase(Phase.LOGGING, "wandb.log"))
    else:
        for name in _MLFLOW:
            patches.replace_function(module, name, as_phase(Phase.LOGGING, f"mlflow.{name}"), also=("mlflow",))
