"""The program each rank runs: load, forward, backward with its communication, optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tools.synth.communication import Communication, FullySharded
from tools.synth.engine import COMPUTE, Program, Rank
from tools.synth.job import Job
from tools.synth.kernels import FP32_GEMM_FACTOR, Op, kernel_name, layer
from tools.synth.loader import Loader

_ADAM_LOOP = ("aten::mul_", "aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::div", "aten::addcdiv_")


class Training:
    """One rank's training loop."""

    def __init__(self, job: Job, rank: Rank, communication: Communication) -> None:
        self.job = job
        self.rank = rank
        self.comm = communication
        self.loader = Loader(job, rank)
        self.ops = layer(attention_fused=job.attention_fused)
        trained = [op for op in self.ops if op.grad_share]
        self._trained_ops, self._first_trained = len(trained), trained[0]
        self._sequence = 0
        self._graph: list[int] = []
        self._activation_bytes = int(job.memory_share * job.device_memory_bytes * 0.5 / job.layers)

    def program(self) -> Program:
        """Run all steps, warm-up included."""
        self.rank.allocate(int(self.job.memory_share * self.job.device_memory_bytes * 0.5))
        for step in range(self.job.warmup_steps + self._recorded_steps()):
            with self.rank.span(f"ProfilerStep#{step}", "annotation"):
                yield from self._step(step)
        self.rank.synchronize("cudaDeviceSynchronize")

    def _recorded_steps(self) -> int:
        return self.job.steps + self.job.window_shift_steps * (self.job.ranks - 1)

    def _step(self, step: int) -> Program:
        job, rank = self.job, self.rank
        with rank.span("Optimizer.zero_grad#AdamW.zero_grad", "annotation"):
            rank.host(4)
        for micro in range(job.accumulation):
            last = micro == job.accumulation - 1
            self.loader.next_batch()
            yield from self._forward(step)
            yield from self._backward(synchronised=last or not job.no_sync)
        yield from self.comm.after_backward()
        for _ in range(job.allocator_retries):
            self._reallocate()
        yield from self._optimizer()
        self._late_host()
        if job.log_every and step % job.log_every == 0:
            self._item()

    def _forward(self, step: int) -> Program:
        with self.rank.span(self.comm.forward_span, "annotation"):
            self._op("aten::embedding", "embedding", 60)
            for index in range(self.job.layers):
                yield from self.comm.before_layer_forward(index)
                self._block(recorded=True)
                yield from self.comm.after_layer_forward(index)
                self.rank.allocate(self._activation_bytes)
            for _ in range(self._extra_blocks(step)):
                self._block(recorded=False)
        self._op("aten::nll_loss_forward", "loss", 55)

    def _block(self, *, recorded: bool) -> None:
        """Run one block forward; *recorded* by autograd, its nodes are undone in reverse later."""
        for op in self.ops:
            self._sequence += 1
            if recorded:
                self._graph.append(self._sequence)
            args = {"Sequence number": self._sequence, "Fwd thread id": 0}
            if not op.outer:
                self._op(op.aten, op.kernel, self._micros(op), args)
                continue
            with self.rank.span(op.outer, args=args):
                self._op(op.aten, op.kernel, self._micros(op), args)

    def _extra_blocks(self, step: int) -> int:
        """Blocks of additional work on a rank that has more to compute."""
        late = self.job.late
        if late is None or late.kind not in ("compute", "rotating"):
            return 0
        # A fixed pseudo-random order: neighbouring steps must not share the late rank.
        turn = (step * 7 + step // 3) % self.job.ranks
        if not (late.hits(self.rank.rank) if late.kind == "compute" else turn == self.rank.rank):
            return 0
        block_ms = sum(self._micros(op) for op in self.ops) / 1e3
        return max(1, round(late.ms / block_ms))

    def _backward(self, *, synchronised: bool) -> Program:
        rank = self.rank
        with rank.thread(rank.autograd_tid):
            self.comm.start_backward(synchronised=synchronised)
            for index in reversed(range(self.job.layers)):
                yield from self.comm.before_layer_backward(index)
                if self.job.recompute:
                    self._recomputed_forward()
                for op in reversed(self.ops):
                    self._node(op)
                    if op.grad_share:
                        yield from self._accumulate(op, last=index == 0 and op is self._first_trained)
                yield from self.comm.after_layer_backward(index)
                rank.allocate(-self._activation_bytes)
            yield from self.comm.end_backward()

    def _recomputed_forward(self) -> None:
        with (
            self._evaluate("CheckpointFunctionBackward"),
            self.rank.span("CheckpointFunctionBackward"),
        ):
            self._block(recorded=False)

    def _accumulate(self, op: Op, *, last: bool) -> Program:
        """Hand over the gradients of an operator's parameters; the hook that reduces them runs inside."""
        parameters = max(1, self.job.params_per_layer // self._trained_ops)
        size = op.grad_share * self.job.layer_bytes / parameters
        for number in range(parameters):
            with self._evaluate("torch::autograd::AccumulateGrad"):
                with self.rank.span("torch::autograd::AccumulateGrad"):
                    self.rank.host(1.5)
                yield from self.comm.gradient_ready(size, last=last and number == parameters - 1)

    def _node(self, op: Op) -> None:
        args = {"Sequence number": self._graph.pop(), "Fwd thread id": 1}
        with self._evaluate(op.node, args), self.rank.span(op.node, args=args):
            for aten, kernel, factor in op.backward:
                self._op(aten, kernel, self._micros(op) * factor)

    @contextmanager
    def _evaluate(self, node: str, args: Mapping[str, Any] | None = None) -> Iterator[None]:
        with self.rank.span(f"autograd::engine::evaluate_function: {node}", args=args):
            yield

    def _optimizer(self) -> Program:
        job, rank = self.job, self.rank
        tensors = job.params_per_layer * job.layers
        for _ in range(job.items_per_step):
            self._op("aten::linalg_vector_norm", "norm_scalar", 6)
            self._item()
        name = "DeepSpeedCPUAdam" if job.optimizer == "cpu" else "AdamW"
        with rank.span(f"Optimizer.step#{name}.step", "annotation"):
            if job.optimizer == "cpu":
                self._offloaded_update()
            elif job.optimizer == "loop":
                for _ in range(tensors):
                    for aten in _ADAM_LOOP:
                        self._op(aten, "adam_loop", 4.0)
            else:
                with rank.span("aten::_fused_adamw_"):
                    for _ in range(max(1, tensors // 36)):
                        rank.kernel(self._kernel("adam_fused"), 700 * job.compute_scale)
        yield from ()

    def _reallocate(self) -> None:
        """Give cached blocks back and ask for them again: both calls wait for the device."""
        rank = self.rank
        with rank.span("aten::empty"):
            rank.synchronize("cudaDeviceSynchronize")
            rank.api("cudaFree", 900)
            rank.api("cudaMalloc", 700)

    def _offloaded_update(self) -> None:
        job, rank = self.job, self.rank
        total = job.layers * job.layer_bytes
        with rank.span("aten::copy_"):
            rank.copy("d2h", total, gbps=job.host_link_gbps)
            rank.synchronize("cudaStreamSynchronize", COMPUTE)
        with rank.span("CPUAdamBuilder::adam_update"):
            rank.host(total / 4e3)
        with rank.span("aten::copy_"):
            rank.copy("h2d", total, gbps=job.host_link_gbps)

    def _late_host(self) -> None:
        """Host work that only one rank does between steps, after reading a value back (metrics, a checkpoint …)."""
        late = self.job.late
        if late is not None and late.kind == "host_after_sync" and late.hits(self.rank.rank):
            self._item()
            self.rank.host(late.ms * 1e3)

    def _item(self) -> None:
        rank = self.rank
        with rank.span("aten::item"), rank.span("aten::_local_scalar_dense"):
            rank.copy("d2h", 4, gbps=1.0)
            rank.synchronize("cudaStreamSynchronize", COMPUTE)

    def _op(self, aten: str, kernel: str, micros: float, args: Mapping[str, Any] | None = None) -> None:
        with self.rank.span(aten, args=args):
            self.rank.host(self.job.host_op_us)
            self.rank.kernel(self._kernel(kernel), micros)

    def _micros(self, op: Op) -> float:
        slow = FP32_GEMM_FACTOR if op.kernel == "gemm" and self.job.precision == "fp32" else 1.0
        shared = 0.5 if self.job.strategy == "tp_dp" and op.kernel == "gemm" else 1.0
        return op.micros * slow * shared * self.job.compute_scale

    def _kernel(self, kernel: str) -> str:
        return kernel_name(kernel, precision=self.job.precision, rocm=self.job.flavour == "rocm")


def training(job: Job, rank: Rank, groups: Communication) -> Training:
    """Return the loop of one rank."""
    if isinstance(groups, FullySharded) != (job.strategy == "fsdp"):
        raise ValueError(f"strategy {job.strategy} was given {type(groups).__name__}")
    return Training(job, rank, groups)
