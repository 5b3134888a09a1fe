"""What the compute families see in traces that PyTorch records here: checkpointing, attention, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.attention import attention
from ddiag.analysis.names import where_name
from ddiag.analysis.optimizer_step import optimizer_step
from ddiag.analysis.recompute import recompute, repeated_forward
from ddiag.analysis.steps import find_steps
from ddiag.ingest import load
from ddiag.model.run import Run

torch = pytest.importorskip("torch")
WIDTH, BATCH, LENGTH = 32, 4, 8
Layer = Callable[[Any], Any]


class Model:
    """Three blocks of norm, mixing and two linear layers, with a classifier's softmax at the end."""

    def __init__(self) -> None:
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, 10)

    @property
    def parameters(self) -> list[Any]:
        return [p for layer in (self.up, self.down, self.norm, self.head) for p in layer.parameters()]

    def block(self, x: Any, mix: Layer) -> Any:
        return x + self.down(torch.relu(self.up(mix(self.norm(x)))))

    def loss(self, mix: Layer, repeat: Callable[[Layer, Any], Any]) -> Any:
        x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
        for _ in range(3):
            x = repeat(lambda y: self.block(y, mix), x)
        return self.head(x).softmax(-1).pow(2).mean()


def unchanged(x: Any) -> Any:
    return x


def plainly(block: Layer, x: Any) -> Any:
    return block(x)


def record(
    path: Path,
    *,
    mix: Layer = unchanged,
    repeat: Callable[[Layer, Any], Any] = plainly,
    optimizer: dict[str, Any] | None = None,
    penalty: bool = False,
    with_stack: bool = False,
) -> Run:
    """Three recorded steps of training on the CPU."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    stepper = torch.optim.AdamW(model.parameters, lr=1e-3, **(optimizer or {}))
    file = path / "trace.json"
    cpu = [torch.profiler.ProfilerActivity.CPU]
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3)
    with torch.profiler.profile(
        activities=cpu,
        record_shapes=True,
        with_stack=with_stack,
        schedule=schedule,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
    ) as profiler:
        for _ in range(4):
            stepper.zero_grad()
            loss = model.loss(mix, repeat)
            if penalty:
                (slope,) = torch.autograd.grad(loss, [model.parameters[0]], create_graph=True)
                loss = loss + slope.pow(2).sum()
            loss.backward()
            stepper.step()
            profiler.step()
    return load([str(file)])


def checkpointed(*, reentrant: bool) -> Callable[[Layer, Any], Any]:
    from torch.utils.checkpoint import checkpoint

    return lambda block, x: checkpoint(block, x, use_reentrant=reentrant)


@pytest.mark.parametrize("with_stack", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_seen_with_and_without_stacks(tmp_path: Path, *, reentrant: bool, with_stack: bool) -> None:
    run = record(tmp_path, repeat=checkpointed(reentrant=reentrant), with_stack=with_stack)
    windows = find_steps(run)
    found = recompute(run, windows, activity(run), None)
    assert found is not None
    assert found.ms_per_step > 0
    linears = where_name(repeated_forward(run), lambda name: name == "aten::linear")
    assert linears.height == 3 * 3 * 2, "two linear layers in each of three blocks, three steps"
    assert ("CheckpointFunctionBackward" in found.detected_by) is reentrant


@pytest.mark.parametrize("penalty", [False, True])
def test_plain_and_twice_differentiated_training_repeat_nothing(tmp_path: Path, *, penalty: bool) -> None:
    run = record(tmp_path, penalty=penalty)
    assert recompute(run, find_steps(run), activity(run), None) is None


def heads(y: Any) -> Any:
    return y.view(BATCH, LENGTH, 4, WIDTH // 4).transpose(1, 2)


def by_hand(y: Any) -> Any:
    q = heads(y)
    scores = (q @ q.transpose(-1, -2) / 4).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -1e9)
    return (scores.softmax(-1) @ q).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)


def by_library(y: Any) -> Any:
    q = heads(y)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    return mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)


def by_math_backend(y: Any) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return by_library(y)


@pytest.mark.parametrize(
    ("mix", "fused", "evidence"),
    [
        (by_hand, False, "aten::bmm, aten::softmax and aten::bmm in a row"),
        (by_math_backend, False, "aten::_scaled_dot_product_attention_math"),
        (by_library, True, "aten::_scaled_dot_product_flash_attention_for_cpu"),
    ],
)
def test_attention_is_told_apart(tmp_path: Path, mix: Layer, *, fused: bool, evidence: str) -> None:
    run = record(tmp_path, mix=mix)
    found = attention(run, find_steps(run), None)
    assert found is not None
    assert found.evidence == evidence
    assert found.calls_per_step == 3
    assert (found.fused_ms > 0, found.unfused_ms > 0) == (fused, not fused)


def test_a_classifier_alone_has_no_attention(tmp_path: Path) -> None:
    run = record(tmp_path)
    assert attention(run, find_steps(run), None) is None


@pytest.mark.parametrize(
    ("options", "implementation"),
    [({"fused": True}, "fused"), ({"foreach": True}, "foreach"), ({"foreach": False}, "for_loop")],
)
def test_the_optimizers_implementation_is_seen(tmp_path: Path, options: dict[str, Any], implementation: str) -> None:
    run = record(tmp_path, optimizer=options)
    found = optimizer_step(run, find_steps(run), activity(run))
    assert found is not None
    assert (found.name, found.implementation) == ("AdamW", implementation)
    assert found.steps_per_optimizer_step == 1.0
    assert found.ms_per_step > 0
