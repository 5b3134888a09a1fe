"""Flight Recorder dumps of big jobs that hang, as torch 2.10 writes them: one group of all ranks, or TP x PP x DP.

In both one rank stops calling; in the second the others stop one after the other, as far as each can go without it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.synth.torch_pickle import END, START, Shared, Slot, TorchPickler, number

BEGIN_NS = 1_790_000_000_000_000_000
TENSOR, PIPELINE = 8, 8
_TENSOR_CALLS = 12
_COMPLETED, _STARTED = "completed", "started"
_FILES = (
    ("all_reduce", "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3245),
    ("wrapper", "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83),
    ("_reduce", "/opt/venv/lib/python3.11/site-packages/megatron/core/tensor_parallel/mappings.py", 23),
    ("forward", "/opt/venv/lib/python3.11/site-packages/megatron/core/tensor_parallel/layers.py", 1188),
    ("_call_impl", "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 1790),
    ("forward", "/job/model/attention.py", 212),
    ("_call_impl", "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 1790),
    ("forward", "/job/model/block.py", 98),
    ("forward_step", "/job/train.py", 141),
    ("train_step", "/job/train.py", 203),
    ("train", "/job/train.py", 311),
    ("main", "/job/train.py", 402),
    ("<module>", "/job/train.py", 431),
)


@dataclass(frozen=True)
class Call:
    """One kind of entry: it differs from others of its kind only in its numbers."""

    group: str
    name: str
    numel: int
    p2p: bool = False


@dataclass(frozen=True)
class Layout:
    """Which ranks work together, and who stops."""

    world: int
    culprit: int
    tensor: int = 1
    pipeline: int = 1

    @property
    def data(self) -> int:
        return self.world // (self.tensor * self.pipeline)

    def place(self, rank: int) -> tuple[int, int, int]:
        """(tensor, data, pipeline) place of a rank: tensor changes fastest, pipeline slowest."""
        return rank % self.tensor, rank // self.tensor % self.data, rank // (self.tensor * self.data)

    def rank(self, tensor: int, data: int, pipeline: int) -> int:
        return tensor + self.tensor * (data + self.data * pipeline)


def one_group(world: int, seed: int) -> Layout:
    """All ranks reduce together."""
    return Layout(world, random.Random(seed).randrange(world))


def three_ways(world: int, seed: int) -> Layout:
    """TP8 x PP8, the rest data parallel (smaller for few ranks)."""
    tensor = min(TENSOR, world // 4)
    return Layout(world, random.Random(seed).randrange(world), tensor, min(PIPELINE, world // tensor // 2))


def write_dumps(folder: Path, layout: Layout, entries: int) -> int:
    """One file per rank in *folder*; returns their bytes."""
    total = 0
    for rank in range(layout.world):
        data = dump(layout, rank, entries)
        total += (folder / f"comm_lib_trace_rank_{rank}").write_bytes(data)
    return total


def dump(layout: Layout, rank: int, entries: int) -> bytes:
    """The dump of one rank that kept its last *entries* calls."""
    groups = groups_of(layout, rank)
    calls = list(_calls(layout, rank, groups, entries))
    pickler = TorchPickler()
    head = {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(list(ranks))} for name, desc, ranks in groups.values()
        },
        "comm_lib_version": "2.27.5",
        "pg_status": _status(groups, calls),
    }
    opening = START + b"}(" + b"".join(pickler.value(key) + pickler.value(value) for key, value in head.items())
    return (
        opening + pickler.value("entries") + b"](" + b"".join(_entries(pickler, calls, groups, entries)) + b"eu" + END
    )


def groups_of(layout: Layout, rank: int) -> dict[str, tuple[str, str, range]]:
    """(name, description, members) of the groups of *rank*; names count up in the order of creation, as in Megatron."""
    groups = {"world": ("0", "default_pg", range(layout.world))}
    if layout.tensor == 1:
        return groups
    tensor, data, pipeline = layout.place(rank)
    per_stage = layout.tensor * layout.data
    data_groups, tensor_groups = layout.tensor * layout.pipeline, layout.data * layout.pipeline
    first = pipeline * per_stage
    groups["data"] = (
        str(1 + tensor + layout.tensor * pipeline),
        "DATA_PARALLEL_GROUP",
        range(first + tensor, first + per_stage, layout.tensor),
    )
    begin = layout.rank(0, data, pipeline)
    groups["tensor"] = (
        str(1 + data_groups + data + layout.data * pipeline),
        "TENSOR_MODEL_PARALLEL_GROUP",
        range(begin, begin + layout.tensor),
    )
    groups["pipeline"] = (
        str(1 + data_groups + tensor_groups + tensor + layout.tensor * data),
        "PIPELINE_MODEL_PARALLEL_GROUP",
        range(rank % per_stage, layout.world, per_stage),
    )
    return groups


def _step(layout: Layout, rank: int, groups: dict[str, tuple[str, str, range]]) -> list[Call]:
    """The calls of one training step."""
    if layout.tensor == 1:
        return [Call("world", "nccl:all_reduce", 1 << (14 + k % 8)) for k in range(16)]
    stage = layout.place(rank)[2]
    calls = [Call("tensor", "nccl:all_reduce", 4096 * 8192)] * _TENSOR_CALLS
    if stage > 0:
        calls.insert(0, Call("pipeline", f"nccl:recv {stage}<-{stage - 1}", 4096 * 1024, p2p=True))
    if stage < layout.pipeline - 1:
        calls.append(Call("pipeline", f"nccl:send {stage}->{stage + 1}", 4096 * 1024, p2p=True))
    return [*calls, Call("data", "nccl:_reduce_scatter_base", 1 << 24), Call("world", "nccl:all_reduce", 1)]


def _left_out(layout: Layout, rank: int) -> tuple[int, bool]:
    """How many calls of the last step *rank* does not make, and whether it waits in the last one it made."""
    if layout.tensor == 1:
        return (1, False) if rank == layout.culprit else (0, True)
    (_, data, stage), (_, its_data, its_stage) = layout.place(rank), layout.place(layout.culprit)
    after_tensor = 2 + (stage < layout.pipeline - 1)
    if rank == layout.culprit:
        return after_tensor + _TENSOR_CALLS - 2, False
    if stage < its_stage:
        return 0, True
    if data != its_data:
        return 1, True
    if stage == its_stage:
        return (
            (after_tensor + _TENSOR_CALLS - 3, True)
            if rank // layout.tensor == layout.culprit // layout.tensor
            else (0, True)
        )
    return after_tensor + _TENSOR_CALLS, True


def _calls(
    layout: Layout, rank: int, groups: dict[str, tuple[str, str, range]], entries: int
) -> Iterator[tuple[Call, bool]]:
    """(call, completed) of whole steps and the last, unfinished one."""
    step = _step(layout, rank, groups)
    missing, waits = _left_out(layout, rank)
    last = step[: len(step) - missing]
    steps = entries // len(step) + 2
    for _ in range(steps):
        yield from ((call, True) for call in step)
    yield from ((call, True) for call in last[:-1])
    if last:
        yield last[-1], not waits


def _status(groups: dict[str, tuple[str, str, range]], calls: Sequence[tuple[Call, bool]]) -> dict[str, Any]:
    found = {}
    for number_of, key in enumerate(groups):
        enqueued = sum(call.group == key for call, _ in calls)
        open_calls = sum(call.group == key and not done for call, done in calls)
        found[str(number_of)] = {
            "last_enqueued_collective": enqueued,
            "last_started_collective": enqueued,
            "last_completed_collective": enqueued - open_calls,
        }
    return found


def _entries(
    pickler: TorchPickler,
    calls: Sequence[tuple[Call, bool]],
    groups: dict[str, tuple[str, str, range]],
    entries: int,
) -> Iterator[bytes]:
    """The last *entries* of *calls*, pickled."""
    numbers = {key: str(place) for place, key in enumerate(groups)}
    frames = [Shared({"name": name, "filename": file, "line": line}) for name, file, line in _FILES]
    templates: dict[tuple[Call, bool], Any] = {}
    seqs: dict[str, int] = {}
    sends: dict[str, int] = {}
    for record, (call, done) in enumerate(calls):
        counts = sends if call.p2p else seqs
        counts[call.group] = counts.get(call.group, 0) + 1
        if record < len(calls) - entries:
            continue
        template = templates.get((call, done))
        entry = None if template is not None else _entry(call, groups, numbers, frames, done=done)
        at_ns = BEGIN_NS + record * 3_000_000
        values = (
            number(record),
            number(seqs.get(call.group, 0)),
            number(sends.get(call.group, 0)),
            number(seqs.get(call.group, 0) + sends.get(call.group, 0)),
            number(at_ns),
            number(at_ns + 1_000_000),
            number(at_ns + 2_000_000),
        )
        if template is None:
            yield pickler.template(entry).fill(values)
            templates[call, done] = pickler.template(entry)
        else:
            yield template.fill(values)


def _entry(
    call: Call,
    groups: dict[str, tuple[str, str, range]],
    numbers: dict[str, str],
    frames: list[Shared],
    *,
    done: bool,
) -> dict[str, Any]:
    name, desc, _members = groups[call.group]
    return {
        "frames": frames,
        "record_id": Slot(0),
        "pg_id": int(numbers[call.group]),
        "process_group": (name, desc),
        "collective_seq_id": Slot(1),
        "p2p_seq_id": Slot(2),
        "op_id": Slot(3),
        "profiling_name": call.name,
        "time_created_ns": Slot(4),
        "input_sizes": [[call.numel]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[call.numel]],
        "output_dtypes": ["BFloat16"],
        "state": _COMPLETED if done else _STARTED,
        "time_discovered_started_ns": Slot(5),
        "time_discovered_completed_ns": Slot(6) if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": call.p2p,
        "thread_name": "pt_main_thread",
        "thread_id": "140231443445568",
    }
