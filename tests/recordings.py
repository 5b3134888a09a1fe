"""Run folders written by the recorder's own writers (no torch), with times that a test chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ddiag.capture.names import Facts, Names
from ddiag.capture.ring import RingWriter
from ddiag.capture.step_file import StepWriter
from ddiag.schema import steps as layout
from ddiag.schema.folder import Manifest, ProcessFiles, process_files, write_manifest
from ddiag.schema.phases import FORMAT_VERSION, Copy, Flag, Kind, Op, Phase, State
from ddiag.schema.ring import NO_DTYPE, NO_NAME, RingHeader
from ddiag.schema.steps import StepFlag

MS = 1_000_000
WALL_NS = 1_700_000_000_000_000_000
MONO_NS = 5_000_000_000_000
TID = 4242


@dataclass(frozen=True)
class Plan:
    """One rank of a healthy DDP job: a step of 100 ms with two buckets of 8 MiB."""

    rank: int = 0
    world: int = 2
    steps: int = 12
    attempt: int = 0
    pid: int = 100
    capacity: int = 1024
    input_ms: float = 2.0
    late_ms: float = 0.0
    """How much later this rank issues its buckets than its peers, for want of input."""
    peer_late_ms: float = 0.0
    """How much later than this rank a late peer issues its buckets."""
    buckets: int = 2
    bucket_bytes: int = 8 << 20
    mono_ns: int = MONO_NS
    wall_ns: int = WALL_NS
    rss_growth_bytes: int = 0
    closed: bool = True
    save_every: int = 0
    save_ms: float = 300.0
    device_bytes: int = -1
    """Highest allocation on its device; -1: it trains on the CPU."""
    reserved_bytes: int = -1
    retry_every: int = 0
    """In every so-manieth step the allocator gives its cache back and asks again …"""
    retry_ms: float = 20.0
    """… which takes so long."""
    offload_ms: float = 0.0
    """Of backward, in which 8 MiB of gradients are copied to the host."""
    pause_ms: float = 0.0
    """What the script does of its own after the update."""
    queue: int = 3
    """Batches ready when the loader is asked; it has two workers."""
    micro_steps: int = 1
    compile_at: tuple[int, ...] = ()
    """Steps in which the forward pass is compiled; the same twice: two layers."""
    compile_ms: float = 200.0
    compile_label: str = "forward (model.py:7)"


def write_run(folder: Path, *plans: Plan, ended: bool = True) -> Path:
    """A run folder with a manifest and one process per plan."""
    folder.mkdir(parents=True, exist_ok=True)
    end = WALL_NS + 10**10 if ended else None
    write_manifest(
        folder, Manifest("0.1", "job", ("python", "train.py"), "torchrun", WALL_NS, "node0", 1, end_wall_ns=end)
    )
    for plan in plans:
        write_process(folder, plan)
    return folder


def files_of(folder: Path, plan: Plan) -> ProcessFiles:
    return process_files(folder, attempt=plan.attempt, rank=plan.rank, pid=plan.pid + plan.rank)


def write_process(folder: Path, plan: Plan) -> ProcessFiles:
    files = files_of(folder, plan)
    files.folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(files, plan)
    for step in range(plan.steps):
        writer.step(step)
    if plan.closed:
        writer.ring.close(writer.now)
    return files


class Writer:
    """Writes one process step by step."""

    def __init__(self, files: ProcessFiles, plan: Plan) -> None:
        self.plan, self.now = plan, plan.mono_ns + MS
        header = RingHeader(
            FORMAT_VERSION, plan.capacity, files.pid, plan.rank, plan.world, plan.rank, plan.attempt, 7, plan.wall_ns,
            plan.mono_ns, TID,
        )  # fmt: skip
        self.ring = RingWriter.create(files.ring, header)
        who = {"pid": files.pid, "rank": plan.rank, "attempt": plan.attempt}
        summaries = layout.pack_header(**who, wall_ns=plan.wall_ns, mono_ns=plan.mono_ns)
        self.summaries = StepWriter(files.steps, summaries, self.ring.count_dropped)
        self.names = Names(files.names, self.ring)
        self.facts = Facts(files.facts, self.ring)
        self.group, self.dtype = self.names.id("0"), self.names.dtype("float32")
        ranks = list(range(plan.world))
        self.facts.write(
            "group", id=self.group, name="0", desc="default_pg", backend="gloo", size=plan.world, ranks=ranks
        )
        self.facts.write("process", torch="2.13.0", cuda="12.8" if plan.device_bytes >= 0 else None, argv=["train.py"])

    def step(self, number: int) -> None:
        plan, begin = self.plan, self.now
        spent = [0] * 16
        self._phase(number, Phase.INPUT, plan.input_ms + plan.late_ms, spent)
        for _ in range(plan.compile_at.count(number)):
            self._phase(number, Phase.COMPILE, plan.compile_ms, spent, plan.compile_label)
        retries = int(plan.retry_every > 0 and number % plan.retry_every == 0)
        self._phase(number, Phase.FORWARD, 28.0 + retries * plan.retry_ms, spent)
        backward = self._begin_phase(number, Phase.BACKWARD)
        began, self.now = self.now, self.now + 10 * MS
        for bucket in range(plan.buckets):
            self._bucket(number, bucket, wait_ms=plan.peer_late_ms)
            self.now += 15 * MS
        if plan.offload_ms:
            self._copy_down(number)
        compiled = spent[Phase.COMPILE] / MS + retries * plan.retry_ms
        end = begin + int((82.0 + plan.peer_late_ms + plan.input_ms + plan.late_ms + compiled) * MS)
        self.now = max(self.now + 10 * MS, end)
        spent[Phase.BACKWARD] = self.now - began
        self.ring.complete(backward, self.now)
        self._phase(number, Phase.OPTIMIZER, 8.0, spent)
        self.now += int(plan.pause_ms * MS)
        if plan.save_every and number % plan.save_every == 0:
            self._phase(number, Phase.CHECKPOINT, plan.save_ms, spent)
        self._summary(number, begin, spent, retries)

    def _copy_down(self, step: int) -> None:
        token = self.ring.begin(
            Kind.COPY, Copy.D2H, 0, NO_NAME, self.names.id("zero/gradient"), step, Phase.BACKWARD, self.dtype, -1, -1,
            self.now, self.now, 0, 8 << 20, 8 << 20, TID, 0.0, State.OPEN, 0,
        )  # fmt: skip
        self.now += int(self.plan.offload_ms * MS)
        self.ring.complete(token, self.now)

    def _begin_phase(self, step: int, phase: Phase, label: str | None = None) -> int:
        named = NO_NAME if label is None else self.names.id(label)
        return self.ring.begin(
            Kind.PHASE, phase, 0, NO_NAME, named, step, phase, NO_DTYPE, -1, -1, self.now, self.now, 0, 0, 0, TID,
            0.0, State.OPEN, 0,
        )  # fmt: skip

    def _phase(self, step: int, phase: Phase, length_ms: float, spent: list[int], label: str | None = None) -> None:
        token = self._begin_phase(step, phase, label)
        self.now += int(length_ms * MS)
        spent[phase] += int(length_ms * MS)
        self.ring.complete(token, self.now)

    def _bucket(self, step: int, bucket: int, *, wait_ms: float) -> None:
        size = self.plan.bucket_bytes
        token = self.ring.begin(
            Kind.COLLECTIVE, Op.ALL_REDUCE, Flag.ASYNC | Flag.FROM_NATIVE, self.group,
            self.names.id(f"ddp0/bucket{bucket}"), step, Phase.BACKWARD, self.dtype, -1,
            step * self.plan.buckets + bucket, self.now, self.now, 0, size, size, TID, 0.0, State.OPEN, 0,
        )  # fmt: skip
        self.ring.complete(token, self.now + int((6.0 + wait_ms) * MS))

    def _summary(self, step: int, begin: int, spent: list[int], retries: int) -> None:
        offset = self.plan.wall_ns - self.plan.mono_ns
        record = _record(
            step,
            begin,
            self.now,
            offset,
            spent,
            rss=(400 << 20) + step * self.plan.rss_growth_bytes,
            head=self.ring.head,
        )
        record = record._replace(loader_queue=self.plan.queue, micro_steps=self.plan.micro_steps)
        if self.plan.device_bytes >= 0:
            held, reserved = self.plan.device_bytes, self.plan.reserved_bytes
            record = record._replace(
                device_allocated_bytes=held, device_peak_allocated_bytes=held, device_reserved_bytes=reserved,
                device_peak_reserved_bytes=reserved, alloc_retries=retries,
            )  # fmt: skip
        self.summaries.append(record.end_ns, layout.flat(record._replace(end_ns=0)))


_FLAGS = {Phase.CHECKPOINT: StepFlag.CHECKPOINT, Phase.COMPILE: StepFlag.COMPILED}


def _record(
    step: int, begin: int, end: int, offset: int, spent: list[int], *, rss: int, head: int
) -> layout.StepRecord:
    return layout.empty(step)._replace(
        start_ns=begin, end_ns=end, wall_end_ns=end + offset, phase_ns=tuple(spent), micro_steps=1, rss_bytes=rss,
        rss_peak_bytes=rss, ring_head=head, loader_workers=2,
        flags=sum(flag for phase, flag in _FLAGS.items() if spent[phase]),
    )  # fmt: skip


def healthy(ranks: int = 2, **changes: object) -> tuple[Plan, ...]:
    return tuple(replace(Plan(rank=rank, world=ranks), **changes) for rank in range(ranks))  # type: ignore[arg-type]
