"""What ranks call in which order: data parallelism, sharding in two dimensions, TP × PP × DP, experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LAYERS = 3


@dataclass(frozen=True)
class Group:
    """A process group. ``name`` may be used by several groups of different ranks, as after split_group."""

    index: int
    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One call of one rank."""

    group: int
    name: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier, send or recv."""
    numel_in: int
    numel_out: int
    step: int
    dtype: str = "BFloat16"
    peer: int | None = None
    overlapped: bool = False
    """On a stream of its own: later calls of other groups do not wait for it."""
    blocks: bool = False
    """The host waits here for everything it has issued."""
    line: int = 0


@dataclass(frozen=True)
class Layout:
    """A job: its groups and the program of every rank."""

    kind: str
    world: int
    groups: tuple[Group, ...]
    programs: tuple[tuple[Op, ...], ...]

    def groups_of(self, rank: int) -> list[Group]:
        return [group for group in self.groups if rank in group.ranks]


def ddp(world: int, steps: int) -> Layout:
    """One group: gradient buckets, then the loss."""
    group = Group(0, "0", "default_pg", tuple(range(world)))
    program: list[Op] = []
    for step in range(steps):
        for bucket, size in enumerate((1 << 20, 6 << 20, 3 << 20)):
            program.append(Op(0, "all_reduce", size, size, step, overlapped=True, line=40 + bucket))
        program.append(Op(0, "all_reduce", 1, 1, step, "Float", blocks=True, line=52))
    return Layout("ddp", world, (group,), tuple(tuple(program) for _ in range(world)))


def fsdp(shard: int, replicas: int, steps: int, *, reuse_names: bool) -> Layout:
    """Sharded inside a node, replicated across nodes."""
    world = shard * replicas
    make = _Groups(reuse_names=reuse_names)
    make.add("default_pg", range(world))
    shards = [make.add("mesh_shard", range(r * shard, (r + 1) * shard)) for r in range(replicas)]
    copies = [make.add("mesh_replicate", range(s, world, shard)) for s in range(shard)]
    programs = []
    for rank in range(world):
        ours, theirs = shards[rank // shard], copies[rank % shard]
        programs.append(tuple(op for step in range(steps) for op in _sharded_step(ours, theirs, shard, step)))
    return Layout("fsdp", world, tuple(make.groups), tuple(programs))


def _sharded_step(shard: int, copy: int, size: int, step: int) -> list[Op]:
    ops = []
    for layer in range(LAYERS):
        part = (layer + 1) << 18
        ops.append(Op(shard, "all_gather", part, part * size, step, line=60 + layer))
    for layer in reversed(range(LAYERS)):
        part = (layer + 1) << 18
        ops.append(Op(shard, "reduce_scatter", part * size, part, step, line=70 + layer))
        ops.append(Op(copy, "all_reduce", part, part, step, overlapped=True, line=75))
    ops.append(Op(0, "all_reduce", 1, 1, step, "Float", blocks=True, line=80))
    return ops


def three_d(tp: int, pp: int, dp: int, steps: int, *, reuse_names: bool, experts: bool = False) -> Layout:
    """TP × PP × DP (rank = (dp · pp + stage) · tp + t); with *experts*, token exchange between the DP ranks."""
    world = tp * pp * dp
    make = _Groups(reuse_names=reuse_names)
    make.add("default_pg", range(world))

    def rank_of(d: int, p: int, t: int) -> int:
        return (d * pp + p) * tp + t

    tps = {(d, p): make.add("TENSOR_MODEL_PARALLEL_GROUP", (rank_of(d, p, t) for t in range(tp)))
           for d in range(dp) for p in range(pp)}  # fmt: skip
    pps = {(d, t): make.add("PIPELINE_MODEL_PARALLEL_GROUP", (rank_of(d, p, t) for p in range(pp)))
           for d in range(dp) for t in range(tp)}  # fmt: skip
    dps = {(p, t): make.add("DATA_PARALLEL_GROUP", (rank_of(d, p, t) for d in range(dp)))
           for p in range(pp) for t in range(tp)}  # fmt: skip
    programs = []
    for rank in range(world):
        d, p, t = rank // (pp * tp), rank // tp % pp, rank % tp
        before = rank_of(d, p - 1, t) if p > 0 else None
        after = rank_of(d, p + 1, t) if p < pp - 1 else None
        place = _Place(tps[d, p], pps[d, t], dps[p, t], before, after, experts=experts, seed=rank)
        programs.append(tuple(op for step in range(steps) for op in _pipelined_step(place, step)))
    kind = "moe" if experts else "tp_pp_dp"
    return Layout(kind, world, tuple(make.groups), tuple(programs))


@dataclass(frozen=True)
class _Place:
    tp: int
    pp: int
    dp: int
    before: int | None
    after: int | None
    experts: bool
    seed: int


def _pipelined_step(at: _Place, step: int) -> list[Op]:
    size = 1 << 16
    ops: list[Op] = []
    for first, then, line in ((at.before, at.after, 100), (at.after, at.before, 120)):
        for _ in range(2):
            if first is not None:
                ops.append(Op(at.pp, "recv", size, size, step, peer=first, line=line))
            for layer in range(LAYERS):
                ops.append(Op(at.tp, "all_reduce", size, size, step, line=line + 1 + layer))
                if at.experts:
                    tokens = 1000 + (at.seed * 37 + step * 11) % 200
                    ops.append(Op(at.dp, "all_to_all", 1024, tokens, step, line=line + 8))
            if then is not None:
                ops.append(Op(at.pp, "send", size, size, step, peer=then, overlapped=True, line=line + 9))
    for bucket in range(2):
        ops.append(Op(at.dp, "all_reduce", (bucket + 1) << 20, (bucket + 1) << 20, step, overlapped=True, line=140))
    ops.append(Op(0, "all_reduce", 1, 1, step, "Float", blocks=True, line=150))
    return ops


class _Groups:
    """Hands out groups; with reused names every kind of group has one name whatever its members."""

    def __init__(self, *, reuse_names: bool) -> None:
        self.groups: list[Group] = []
        self._kinds: dict[str, str] = {}
        self._reuse = reuse_names

    def add(self, desc: str, ranks: Iterable[int]) -> int:
        index = len(self.groups)
        name = self._kinds.setdefault(desc, str(len(self._kinds))) if self._reuse else str(index)
        self.groups.append(Group(index, name, desc, tuple(ranks)))
        return index
