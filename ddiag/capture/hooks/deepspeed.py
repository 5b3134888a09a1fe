"""DeepSpeed's engine: configuration, phases, loss scale, gradient norm, and where a training step ends. ZeRO is in
``zero.py``.

A training step ends with ``_take_model_step``: under ZeRO-3 the inner optimizer steps once per sub-group.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from ddiag.capture import recorder
from ddiag.capture.door import around, guarded
from ddiag.capture.hooks import zero
from ddiag.capture.late_scalar import LateScalar
from ddiag.capture.patches import Patches
from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Mark, Phase

_OPTIMIZER = int(Phase.OPTIMIZER)
_SETTINGS = (
    "zero_optimization_stage",
    "gradient_accumulation_steps",
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_clipping",
    "zero_overlap_comm",
    "zero_contiguous_gradients",
    "zero_reduce_bucket_size",
    "zero_allgather_bucket_size",
    "zero_prefetch_bucket_size",
    "zero_offload_optimizer",
    "zero_offload_param",
    "fp16_enabled",
    "bfloat16_enabled",
)
"""Methods of the engine without arguments; what a version lacks is left out."""


class ModelStep(NamedTuple):
    active: Recorder
    engine: Any
    skipped: int
    scale: float | None
    """Loss scale of its backward passes; None where nothing is scaled."""
    phase: int


_missing: list[str] = []
_late_norm = LateScalar()


def install(module: ModuleType, patches: Patches) -> None:
    """*module* is ``deepspeed.runtime.engine``."""
    engine = module.DeepSpeedEngine
    found = {
        "__init__": partial(around, name="deepspeed.init", before=_first, after=_built),
        "forward": partial(around, name="deepspeed.forward", before=_forward, after=_left),
        "backward": partial(around, name="deepspeed.backward", before=_backward, after=_reversed),
        "_take_model_step": partial(around, name="deepspeed.step", before=_step, after=_stepped),
    }
    _missing[:] = [name for name, make in found.items() if not patches.replace(engine, name, make)]


def activated(active: Recorder) -> None:
    if _missing:
        active.facts.write("hook_missing", hook="deepspeed", names=_missing)


def _first(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return args[0]


def _built(engine: Any, _result: Any, failed: bool) -> None:
    active = recorder.current
    if failed or active is None:
        return
    active.expect_engine()
    zero.name_parameters(engine.module)
    active.facts.write("deepspeed", **_configuration(engine))


def _configuration(engine: Any) -> dict[str, Any]:
    from importlib.metadata import version

    settings = {name: _setting(engine, name) for name in _SETTINGS if hasattr(engine, name)}
    optimizer = getattr(engine, "optimizer", None)
    inner = getattr(optimizer, "optimizer", None)
    names = {"zero_optimizer": type(optimizer).__name__, "inner_optimizer": type(inner or optimizer).__name__}
    return {"version": version("deepspeed"), **settings, **names}


def _setting(engine: Any, name: str) -> Any:
    value = getattr(engine, name)()
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump is not None else value


def _forward(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[Recorder, int] | None:
    active = recorder.current
    if active is None:
        return None
    grad = sys.modules["torch"].is_grad_enabled()
    token = active.begin_forward(grad=grad, training=args[0].module.training)
    return None if token is None else (active, token)


def _left(token: tuple[Recorder, int], _result: Any, failed: bool) -> None:
    token[0].leave(token[1], failed)


def _backward(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[Recorder, int] | None:
    active = recorder.current
    token = None if active is None else active.begin_backward()
    return None if active is None or token is None else (active, token)


def _reversed(token: tuple[Recorder, int], _result: Any, failed: bool) -> None:
    token[0].end_backward(token[1], failed=failed)


def _step(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> ModelStep | None:
    active = recorder.current
    if active is None or not active.on_training_thread():
        return None
    engine = args[0]
    return ModelStep(active, engine, int(engine.skipped_steps), _scale(engine), active.enter(_OPTIMIZER))


def _stepped(step: ModelStep, _result: Any, failed: bool) -> None:
    active, engine, skipped, scale, phase = step
    active.leave(phase, failed)
    if failed:
        return
    if scale is not None:
        active.totals.loss_scale = scale
        after = _scale(engine)
        if after is not None and after != scale:
            active.mark(Mark.LOSS_SCALE, after)
    norm = _norm(engine)
    if norm is not None:
        active.totals.grad_norm = norm
    active.engine_step(skipped=int(engine.skipped_steps) > skipped)


def _read_scale(engine: Any) -> float | None:
    """DeepSpeed's own loss scale; with torch's scaler (``torch_autocast``) that one's hooks tell."""
    if not engine.fp16_enabled():
        return None
    optimizer = engine.optimizer
    scale = getattr(getattr(optimizer, "loss_scale_config", optimizer), "cur_scale", None)
    return float(scale) if isinstance(scale, (int, float)) else None


def _read_norm(engine: Any) -> float | None:
    """Of all ranks' gradients, if the optimizer computed it: a number, or a tensor of a device nobody waits for."""
    norm = getattr(engine, "_global_grad_norm", None)
    value = float(norm) if isinstance(norm, (int, float)) else None if norm is None else _late_norm.offer(norm)
    return None if value is None or value < 0 or math.isnan(value) else value


# Where a step ends must be told even if these cannot be read.
_scale = guarded("deepspeed.scale", _read_scale)
_norm = guarded("deepspeed.norm", _read_norm)
