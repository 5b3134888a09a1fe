"""How ranks talk: DDP buckets, FSDP units, tensor-parallel reductions, and the habits that cost time."""

from __future__ import annotations

from tools.synth.engine import COMPUTE, Call, Group, Program, Rank
from tools.synth.job import Job
from tools.synth.kernels import NCCL_OPS, nccl_kernel

DATA_STREAM = 28
TENSOR_STREAM = 32


class Communication:
    """Data parallelism with gradient buckets; subclasses change what a layer needs."""

    forward_span = "DistributedDataParallel.forward"

    def __init__(self, job: Job, rank: Rank, data: Group) -> None:
        self.job = job
        self.rank = rank
        self.data = data
        self._synchronised = True
        self._pending_bytes = 0.0
        self._deferred: list[int] = []

    def before_layer_forward(self, index: int) -> Program:
        yield from ()

    def after_layer_forward(self, index: int) -> Program:
        yield from ()

    def before_layer_backward(self, index: int) -> Program:
        yield from ()

    def after_layer_backward(self, index: int) -> Program:
        yield from ()

    def start_backward(self, *, synchronised: bool) -> None:
        self._synchronised = synchronised
        self._pending_bytes = 0.0

    def gradient_ready(self, size: float, *, last: bool) -> Program:
        """Put one parameter's gradient into the bucket; reduce the bucket when it is full or nothing follows."""
        if not self._synchronised:
            return
        self._pending_bytes += size
        if self._pending_bytes >= self.job.bucket_bytes or last:
            yield from self._reduce_bucket()

    def end_backward(self) -> Program:
        for size in self._deferred:
            yield from self.call(self.data, "all_reduce", size, size)
        self._deferred.clear()
        if self._synchronised:
            self.rank.stream_waits(COMPUTE, self.data.stream)

    def after_backward(self) -> Program:
        for _ in range(self.job.tiny_reductions):
            yield from self.call(self.data, "all_reduce", 4, 4)
            self.rank.stream_waits(COMPUTE, self.data.stream)
        if self.job.barrier:
            yield from self.call(self.data, "barrier", 1, 1)
            self.rank.stream_waits(COMPUTE, self.data.stream)
            if self.rank.on_device:
                self.rank.synchronize("cudaStreamSynchronize", self.data.stream)

    def _reduce_bucket(self) -> Program:
        size = round(self._pending_bytes / 4) * 4
        self._pending_bytes = 0.0
        if self.job.overlap:
            yield from self.call(self.data, "all_reduce", size, size)
        else:
            self._deferred.append(size)

    def call(self, group: Group, op: str, bytes_in: int, bytes_out: int) -> Program:
        """Issue one collective the way c10d records it: the call, the span inside it, the kernel."""
        dtype = "Byte" if op == "barrier" else self.job.gradient_dtype if bytes_in > 4 else "Float"
        call = Call(group, op, bytes_in, bytes_out, dtype)
        names = NCCL_OPS[op]
        if not self.rank.on_device:
            # gloo runs it on a thread of its own and leaves nothing but that thread's span.
            with self.rank.span(names.operator):
                self.rank.host(30)
                yield from self.rank.collective(call, f"gloo:{op}")
            return
        with (
            self.rank.span(names.operator),
            self.rank.span("record_param_comms", call=call),
            self.rank.span(f"nccl:{names.span}", "annotation"),
        ):
            self.rank.host(22)
            yield from self.rank.collective(call, nccl_kernel(op, dtype, flavour=self.job.flavour))


class FullySharded(Communication):
    """FSDP: every unit's parameters are gathered before use, its gradients scattered after."""

    forward_span = "FullyShardedDataParallel.forward"

    def __init__(self, job: Job, rank: Rank, data: Group) -> None:
        super().__init__(job, rank, data)
        units = max(1, job.units_per_layer)
        whole_model = job.units_per_layer == 0
        self._units_per_layer = 0 if whole_model else units
        self._unit_bytes = job.layer_bytes * job.layers if whole_model else job.layer_bytes // units
        self._gathered_until_ns: dict[int, int] = {}

    def before_layer_forward(self, index: int) -> Program:
        yield from self._need(index, first=0, following=index + 1)

    def before_layer_backward(self, index: int) -> Program:
        yield from self._need(index, first=self.job.layers - 1, following=index - 1)

    def after_layer_backward(self, index: int) -> Program:
        last = index == 0
        for _ in range(self._units_per_layer or int(last)):
            with self.rank.span("FullyShardedDataParallel._post_backward_hook", "annotation"):
                yield from self.call(
                    self.data, "reduce_scatter", self._unit_bytes, self._unit_bytes // len(self.data.ranks)
                )

    def gradient_ready(self, size: float, *, last: bool) -> Program:
        yield from ()

    def _need(self, index: int, *, first: int, following: int) -> Program:
        """Gather what layer *index* needs, and with prefetching what the following one will need."""
        if index == first:
            self._gathered_until_ns.clear()
            yield from self._gather(index)
        elif not self.job.prefetch and self._units_per_layer:
            # Without prefetching the gather is issued only when the previous layer's kernels have been launched, and it
            # waits for them: its output reuses their memory.
            self.rank.stream_waits(self.data.stream, COMPUTE)
            yield from self._gather(index)
        self._wait_for(index)
        if self.job.prefetch and self._units_per_layer and 0 <= following < self.job.layers:
            yield from self._gather(following)

    def _gather(self, index: int) -> Program:
        for _ in range(self._units_per_layer or 1):
            with self.rank.span("FullyShardedDataParallel._pre_forward", "annotation"):
                yield from self.call(
                    self.data, "all_gather", self._unit_bytes // len(self.data.ranks), self._unit_bytes
                )
        self._gathered_until_ns[index] = self.rank.stream_free_ns[self.data.stream]

    def _wait_for(self, index: int) -> None:
        self.rank.api("cudaStreamWaitEvent", 1.5)
        ready = self._gathered_until_ns.get(index, 0)
        self.rank.stream_free_ns[COMPUTE] = max(self.rank.stream_free_ns.get(COMPUTE, 0), ready)


class TensorParallel(Communication):
    """Pairs of ranks share each layer and add up their halves; gradients are reduced across the pairs."""

    def __init__(self, job: Job, rank: Rank, data: Group, tensor: Group) -> None:
        super().__init__(job, rank, data)
        self.tensor = tensor

    def after_layer_forward(self, index: int) -> Program:
        for _ in range(2):
            yield from self._reduce_activations()

    def after_layer_backward(self, index: int) -> Program:
        for _ in range(2):
            yield from self._reduce_activations()

    def _reduce_activations(self) -> Program:
        yield from self.call(self.tensor, "all_reduce", self.job.batch_bytes, self.job.batch_bytes)
        self.rank.stream_waits(COMPUTE, self.tensor.stream)


def communication(job: Job, rank: Rank) -> Communication:
    """Return how *rank* talks to the others under the job's strategy."""
    everyone = tuple(range(job.ranks))
    if job.strategy == "tp_dp":
        pair = rank.rank // 2 * 2
        tensor = Group(f"tp{pair}", "tp", (pair, pair + 1), TENSOR_STREAM)
        data = Group(f"dp{rank.rank % 2}", "dp", everyone[rank.rank % 2 :: 2], DATA_STREAM)
        return TensorParallel(job, rank, data, tensor)
    whole = Group("0", "default_pg", everyone, DATA_STREAM)
    return FullySharded(job, rank, whole) if job.strategy == "fsdp" else Communication(job, rank, whole)


def transfer_ns(job: Job, call: Call) -> int:
    """Return how long the data takes once every member is there (latency + bytes over bus bandwidth)."""
    n = len(call.group.ranks)
    size = max(call.bytes_in, call.bytes_out)
    factor = 2 * (n - 1) / n if call.op in ("all_reduce", "barrier") else (n - 1) / n
    bandwidth = job.busbw_gbps if job.on_device else min(job.busbw_gbps, 4.0)
    return int(job.latency_us * 1e3 + size * factor / bandwidth)
