"""Torch as it is observed: every hook against the real thing, and every one of them put back."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from ddiag.capture import recorder  # noqa: E402
from ddiag.capture.activate import ACTIVATION  # noqa: E402
from ddiag.capture.door import DOOR  # noqa: E402
from ddiag.capture.hooks import WATCHED, dataloader  # noqa: E402
from ddiag.capture.recorder import Recorder  # noqa: E402
from ddiag.schema.phases import Kind, Mark, Pause, Phase  # noqa: E402
from ddiag.schema.steps import StepFlag  # noqa: E402
from tests.unit.capture.reading import phases, records, steps_of  # noqa: E402


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recorder]:
    DOOR.hooks.clear()
    DOOR.forget()
    ACTIVATION.start(tmp_path)
    ACTIVATION.joined()
    assert recorder.current is not None
    yield recorder.current
    errors = [hook.name for hook in DOOR.hooks.values() if hook.failures]
    assert ACTIVATION.stop() == []
    assert errors == []


def _model() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _loader(batches: int = 3, **options: Any) -> Any:
    return DataLoader(TensorDataset(torch.randn(batches * 4, 8)), batch_size=4, **options)


def test_a_plain_loop_becomes_steps_and_phases(recording: Recorder) -> None:
    model, optimizer = _model()
    for (batch,) in _loader(3):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    recording.close_steps()
    assert phases(recording.files) == [*["INPUT", "ZERO_GRAD", "FORWARD", "BACKWARD", "OPTIMIZER"] * 3, "INPUT"]
    assert [step.step for step in steps_of(recording.files)] == [0, 1, 2]
    assert all(step.rss_bytes > 1 << 20 for step in steps_of(recording.files))
    assert all(step.rss_peak_bytes >= step.rss_bytes for step in steps_of(recording.files))


def test_one_training_after_another_loses_no_step(recording: Recorder) -> None:
    for _ in range(3):
        model, optimizer = _model()
        for _ in range(4):
            model(torch.randn(4, 8)).mean().backward()
            optimizer.step()
        del model, optimizer
        gc.collect()
    recording.close_steps()
    assert [step.step for step in steps_of(recording.files)] == list(range(12))
    assert {step.micro_steps for step in steps_of(recording.files)} == {1}


def test_a_closure_is_one_step_with_its_passes_inside(recording: Recorder) -> None:
    model, _ = _model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    batch = torch.randn(4, 8)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    recording.close_steps()
    found = steps_of(recording.files)
    assert len(found) == 2
    assert all(step.micro_steps >= 1 for step in found)
    assert "FORWARD" in phases(recording.files)


def test_a_skipped_step_of_the_scaler_is_seen_with_its_scale(recording: Recorder) -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for k in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).mean()
        scaler.scale(loss * float("inf") if k == 2 else loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    recording.close_steps()
    found = steps_of(recording.files)
    assert [bool(step.flags & StepFlag.OPTIMIZER_SKIPPED) for step in found] == [False, False, True, False]
    assert [step.loss_scale for step in found] == [1024, 1024, 1024, 512]
    assert not any(step.flags & StepFlag.CLIP_BEFORE_UNSCALE for step in found)
    marks = [record.op for record in records(recording.files, Kind.MARK)]
    assert marks.count(Mark.UNSCALE) == 4
    assert marks.count(Mark.OPTIMIZER_SKIPPED) == 1


def test_clipping_scaled_gradients_is_seen(recording: Recorder) -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        scaler.scale(model(torch.randn(4, 8)).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    recording.close_steps()
    assert all(step.flags & StepFlag.CLIP_BEFORE_UNSCALE for step in steps_of(recording.files))


def test_a_scaler_that_is_switched_off_changes_nothing(recording: Recorder) -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(2):
        scaler.scale(model(torch.randn(4, 8)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    recording.close_steps()
    found = steps_of(recording.files)
    assert len(found) == 2
    assert all(step.loss_scale != step.loss_scale and not step.flags for step in found)


def test_the_norm_the_user_computes_is_kept(recording: Recorder) -> None:
    model, optimizer = _model()
    model(torch.randn(4, 8)).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    recording.close_steps()
    (step,) = steps_of(recording.files)
    assert step.grad_norm == pytest.approx(float(norm))
    assert "CLIP" in phases(recording.files)


@pytest.mark.skipif(not hasattr(torch.nn.utils, "get_total_norm"), reason="older than torch 2.6")
def test_the_halves_of_clipping_are_seen_when_called_on_their_own(recording: Recorder) -> None:
    model, optimizer = _model()
    parameters = list(model.parameters())
    torch.nn.utils.get_total_norm(parameters)  # of the weights: no norm of gradients
    for steps in range(2):
        model(torch.randn(4, 8)).mean().backward()
        gradients = [one.grad for one in parameters]
        norm = torch.nn.utils.get_total_norm(gradients if steps else iter(gradients))
        if not steps:
            torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)
        assert (recording.totals.grad_norm, steps) == (pytest.approx(float(norm)), steps)
        optimizer.step()
    recording.close_steps()
    assert phases(recording.files).count("CLIP") == 4
    assert not any(step.flags & StepFlag.CLIP_BEFORE_UNSCALE for step in steps_of(recording.files))


@pytest.mark.skipif(not hasattr(torch.nn.utils, "get_total_norm"), reason="older than torch 2.6")
def test_a_norm_of_scaled_gradients_may_be_looked_at_but_not_clipped_with(recording: Recorder) -> None:
    model, optimizer = _model()
    parameters = list(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    for clip in (False, True):
        scaler.scale(model(torch.randn(4, 8)).mean()).backward()
        norm = torch.nn.utils.get_total_norm([one.grad for one in parameters])
        if clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)
        scaler.step(optimizer)
        scaler.update()
    recording.close_steps()
    flags = [bool(step.flags & StepFlag.CLIP_BEFORE_UNSCALE) for step in steps_of(recording.files)]
    assert flags == [False, True]


def test_saving_is_a_checkpoint(recording: Recorder) -> None:
    model, optimizer = _model()
    torch.save(model.state_dict(), io.BytesIO())
    optimizer.step()
    recording.close_steps()
    assert phases(recording.files)[0] == "CHECKPOINT"
    assert steps_of(recording.files)[0].flags & StepFlag.CHECKPOINT


def test_evaluation_between_steps_is_told_apart(recording: Recorder) -> None:
    model, optimizer = _model()
    training, held_out = _loader(4), _loader(2)
    for k, (batch,) in enumerate(training):
        model(batch).mean().backward()
        optimizer.step()
        if k == 1:
            model.eval()
            with torch.no_grad():
                for (unseen,) in held_out:
                    model(unseen)
            model.train()
    recording.close_steps()
    found = steps_of(recording.files)
    assert [bool(step.flags & StepFlag.EVALUATION) for step in found] == [False, False, True, False]
    assert phases(recording.files).count("EVALUATION") == 1


def test_workers_and_their_queue_are_seen(recording: Recorder) -> None:
    model, optimizer = _model()
    for (batch,) in _loader(4, num_workers=1):
        model(batch).mean().backward()
        optimizer.step()
    recording.close_steps()
    found = steps_of(recording.files)
    assert len(found) == 4
    assert {step.loader_workers for step in found} == {1}
    assert all(step.loader_queue >= 0 for step in found)


def test_a_loader_in_the_process_has_no_workers() -> None:
    iterator = iter(_loader(1))
    assert dataloader.ready(iterator) == (-1, 0)


def test_collections_of_garbage_are_counted(recording: Recorder) -> None:
    model, optimizer = _model()
    model(torch.randn(4, 8)).mean().backward()
    gc.collect()
    optimizer.step()
    recording.close_steps()
    (step,) = steps_of(recording.files)
    assert step.gc_count >= 1
    assert step.gc_ns > 0
    assert any(record.op == Pause.GC and record.value == 2.0 for record in records(recording.files, Kind.PAUSE))


def test_activation_checkpointing_stays_inside_backward(recording: Recorder) -> None:
    model, optimizer = _model()
    batch = torch.randn(4, 8, requires_grad=True)
    for reentrant in (True, False):
        torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=reentrant).mean().backward()
        optimizer.step()
    recording.close_steps()
    assert [step.micro_steps for step in steps_of(recording.files)] == [1, 1]
    assert phases(recording.files).count("BACKWARD") == 2


def test_an_exception_in_backward_is_the_users_and_recording_goes_on(recording: Recorder) -> None:
    model, optimizer = _model()
    loss = model(torch.randn(4, 8)).mean()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    model(torch.randn(4, 8)).mean().backward()
    optimizer.step()
    recording.close_steps()
    assert [step.micro_steps for step in steps_of(recording.files)] == [2]


def test_a_model_is_copied_and_pickled_as_ever(recording: Recorder) -> None:
    model, optimizer = _model()
    model(torch.randn(4, 8)).mean().backward()
    optimizer.step()
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))  # noqa: S301 - our own model
    assert not again._forward_hooks
    assert b"ddiag" not in pickle.dumps((model, optimizer))


def test_logging_to_a_summary_writer_is_seen(recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch.utils.tensorboard.writer")

    class SummaryWriter:
        def add_scalar(self, *_: Any) -> str:
            return "written"

        def add_scalars(self, *_: Any) -> str:
            return self.add_scalar()

    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    from ddiag.capture.hooks import logging

    logging.install(module, ACTIVATION.patches)
    assert SummaryWriter().add_scalars() == "written"
    assert phases(recording.files) == ["LOGGING"]


def test_batches_sent_to_a_device_are_seen_and_to_the_cpu_are_not(recording: Recorder) -> None:
    module = types.ModuleType("accelerate.utils.operations")

    def send_to_device(data: Any, device: Any, **_options: Any) -> Any:
        return [module.send_to_device(one, device) for one in data] if isinstance(data, list) else (data, device)

    module.send_to_device = send_to_device  # type: ignore[attr-defined]
    from ddiag.capture.hooks import h2d

    h2d.install(module, ACTIVATION.patches)
    assert module.send_to_device([1, 2], "cpu") == [(1, "cpu"), (2, "cpu")]
    assert phases(recording.files) == []
    assert module.send_to_device([1, 2], device="cuda:0") == [(1, "cuda:0"), (2, "cuda:0")]
    assert phases(recording.files) == ["H2D"]


def test_a_forked_child_writes_nothing_into_its_parents_files(recording: Recorder) -> None:
    recording.begin_optimizer(1)
    recording.end_optimizer(1)
    token = recording.enter(Phase.LOGGING)
    before = recording.files.ring.read_bytes(), recording.files.steps.read_bytes()
    child = os.fork()
    if child == 0:
        recording.leave(token)
        recording.leave(recording.enter(Phase.CHECKPOINT))
        recording.engine_step()
        recording.names.id("the child's")
        os._exit(0 if recorder.current is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (recording.files.ring.read_bytes(), recording.files.steps.read_bytes()) == before
    assert recording.files.names.read_bytes() == b""
    recording.leave(token)
    assert recorder.current is recording
    recording.close_steps()
    assert len(steps_of(recording.files)) == 1


COUNTERS = {"next_id"}
"""Of handles torch has given out: goes up with every hook that was ever registered."""


def _everything_torch_has() -> dict[str, Any]:
    """Every attribute of the watched modules and of the classes they define."""
    found: dict[str, Any] = {"gc": list(gc.callbacks), "meta_path": list(sys.meta_path)}
    for name in {"torch", "torch.nn.utils", "torch.distributed", *(module for module, _ in WATCHED)}:
        module = sys.modules.get(name)
        for key, value in vars(module).items() if module is not None else ():
            found[f"{name}.{key}"] = value
            # type(): torch.distributed.reduce_op warns when anybody so much as asks for its class.
            if issubclass(type(value), type) and value.__module__.startswith("torch"):
                found |= {f"{name}.{key}.{one}": inner for one, inner in vars(value).items() if one not in COUNTERS}
    optimizer = sys.modules["torch.optim.optimizer"]
    found["hooks"] = (dict(optimizer._global_optimizer_pre_hooks), dict(optimizer._global_optimizer_post_hooks))
    return found


def test_nothing_of_ours_is_left_behind(tmp_path: Path) -> None:
    __import__("torch.distributed.fsdp")
    __import__("torch.distributed.checkpoint")
    before = _everything_torch_has()
    ACTIVATION.start(tmp_path)
    ACTIVATION.joined()
    during = _everything_torch_has()
    changed = [key for key in before if before[key] is not during[key] and key not in ("gc", "meta_path", "hooks")]
    assert len(changed) > 10
    assert ACTIVATION.stop() == []
    after = _everything_torch_has()
    assert [key for key in before if before[key] is not after.get(key) and before[key] != after.get(key)] == []


def test_importing_ddiag_or_the_recorder_does_not_import_torch() -> None:
    import subprocess

    code = "import sys, ddiag, ddiag.capture.activate, ddiag.capture.recording; ddiag.record; "
    code += "print([n for n in ('torch', 'numpy', 'polars', 'click') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
