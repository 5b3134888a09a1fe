"""The evidence folder of one night: logs, kernel messages, nvidia-smi outputs and dumps of many nodes, one of them bad.

Seeded; the truth is returned, and nothing in the files says it but what such files say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType

from tools.synth.hangs import dump
from tools.synth.hangs.faults import dead, played
from tools.synth.hangs.play import Rank
from tools.synth.hangs.program import Layout, ddp

GPUS = 8
BUSES = ("17", "2a", "3b", "5d", "9a", "ab", "ba", "db")
TIMEOUT = timedelta(seconds=600)
BEGIN = datetime(2026, 3, 21, 22, 14, 3, tzinfo=timezone.utc)
NCCL_VERSION = "2.27.5+cuda12.9"
PARAMETERS = 6_291_456


@dataclass(frozen=True)
class Truth:
    """What really happened."""

    root_cause: str
    rank: int
    host: str


@dataclass(frozen=True)
class Night:
    """One incident to be written."""

    nodes: int = 64
    kind: str = "xid"
    """xid (a GPU falls off the bus) or oom (the kernel kills a rank)."""
    seed: int = 0
    lines: int = 3000
    """Of training progress per node."""
    steps: int = 100
    """Steps the Flight Recorder still holds."""


@dataclass(frozen=True)
class _End:
    """How the job ended."""

    at: datetime
    culprit: int
    seq: int
    """Number of the call that everybody waits in."""


def write_incident(folder: Path, night: Night) -> Truth:
    """Write the folder of *night* and return the truth."""
    rng = random.Random(f"{night.kind}-{night.seed}")
    world = night.nodes * GPUS
    culprit = rng.randrange(world)
    died = BEGIN + timedelta(hours=3, seconds=rng.randrange(3600))
    hosts = [f"gn{100 + k}" for k in rng.sample(range(800), night.nodes)]
    truth = Truth({"xid": "RC-07", "oom": "RC-29"}[night.kind], culprit, hosts[culprit // GPUS])
    index = 4 * (night.steps - 2) + rng.randrange(3)
    layout, ranks = _hung(world, culprit, night.steps, index)
    for number, host in enumerate(hosts):
        node = folder / host
        node.mkdir(parents=True)
        bad = number == culprit // GPUS
        local = culprit % GPUS if bad else None
        (node / "train.log").write_text(
            "\n".join(_job_log(night, hosts, number, _End(died, culprit, index + 1))) + "\n"
        )
        (node / "dmesg.txt").write_text("\n".join(_kernel(rng, night.kind, died, local)) + "\n")
        (node / "nvidia-smi.csv").write_text("\n".join(_gpus(rng, night.kind, local)) + "\n")
    dumps = folder / "dumps"
    dumps.mkdir()
    for rank in ranks:
        if rank.number != culprit:
            dump.write(layout, rank, dump.Style(version="2.9"), dumps)
    return truth


def _hung(world: int, culprit: int, steps: int, index: int) -> tuple[Layout, list[Rank]]:
    """The job whose *culprit* is gone before call *index* of its program (four calls a step)."""
    layout = ddp(world, steps)
    plan = dead(layout, culprit, index)
    assert plan is not None
    return layout, played(layout, plan)


def _job_log(night: Night, hosts: list[str], node: int, end: _End) -> Iterator[str]:
    """What torchrun's node log holds: NCCL's start, progress of the local rank 0, and the end."""
    host, first = hosts[node], node * GPUS
    world = len(hosts) * GPUS
    yield f"W0321 22:13:58.{node:03d}000 4242 torch/distributed/run.py:793] Setting OMP_NUM_THREADS to 1 by default"
    for local in range(GPUS):
        pid = 50_000 + local
        yield f"{host}:{pid}:{pid} [{local}] NCCL INFO cudaDriverVersion 12090"
        yield f"{host}:{pid}:{pid} [{local}] NCCL INFO NCCL version {NCCL_VERSION}"
        yield (
            f"{host}:{pid}:{pid + 900} [{local}] NCCL INFO ncclCommInitRankConfig comm 0x5581{local}c0 rank "
            f"{first + local} "
            f"nranks {world} cudaDev {local} nvmlDev {local} busId {BUSES[local]}000 commId 0x9cde17aa - Init COMPLETE"
        )
    seconds = (end.at - BEGIN).total_seconds()
    for index in range(night.lines):
        at = BEGIN + timedelta(seconds=seconds * index / night.lines)
        yield (
            f"[rank{first}]: [{at:%Y-%m-%d %H:%M:%S},{index % 1000:03d}] [INFO] step {index:>6} | loss "
            f"{9.1 / (1 + index / 400):.4f} | lr 3.0e-04 | tokens/s 41,{index % 900 + 100}"
        )
    yield from _ending(night, hosts, node, end)


def _ending(night: Night, hosts: list[str], node: int, end: _End) -> Iterator[str]:
    host, first = hosts[node], node * GPUS
    died, culprit, gave_up = end.at, end.culprit, end.at + TIMEOUT
    for local in range(GPUS):
        rank = first + local
        if rank == culprit:
            continue
        at = gave_up + timedelta(milliseconds=37 * local + node)
        stamp = f"{at.month}{at.day:02d} {at:%H:%M:%S}.{at.microsecond:06d}000"
        yield (
            f"[rank{rank}]:[E{stamp} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
            f"operation timeout: "
            f"WorkNCCL(SeqNum={end.seq}, OpType=ALLREDUCE, NumelIn={PARAMETERS}, NumelOut={PARAMETERS}, "
            f"Timeout(ms)=600000) ran for {600_020 + local} milliseconds before timing out."
        )
    if node == culprit // GPUS:
        signal = "-9" if night.kind == "oom" else "-6"
        local, pid = culprit % GPUS, 50_000 + culprit % GPUS
        seen = died + timedelta(seconds=4) if night.kind == "oom" else gave_up + timedelta(seconds=2)
        yield f"E{seen:%m%d %H:%M:%S}.403000 4242 torch/distributed/elastic/multiprocessing/api.py:874] failed " + (
            f"(exitcode: {signal}) local_rank: {local} (pid: {pid}) of binary: /opt/conda/bin/python3.11"
        )
        yield from _summary(host, culprit, signal, pid, seen)


def _summary(host: str, rank: int, signal: str, pid: int, at: datetime) -> Iterator[str]:
    name = {"-9": "9 (SIGKILL)", "-6": "6 (SIGABRT)"}[signal]
    yield from ("=" * 60, "pretrain.py FAILED", "-" * 60, "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60)
    yield from ("Root Cause (first observed failure):", "[0]:", f"  time      : {at:%Y-%m-%d_%H:%M:%S}")
    yield from (f"  host      : {host}.cluster.local", f"  rank      : {rank} (local_rank: {rank % GPUS})")
    yield from (f"  exitcode  : {signal} (pid: {pid})", "  error_file: <N/A>")
    yield from (f"  traceback : Signal {name} received by PID {pid}", "=" * 60)


def _kernel(rng: random.Random, kind: str, died: datetime, local: int | None) -> Iterator[str]:
    """``dmesg -T``: what every kernel says now and then, and the fault on the bad node."""
    for _ in range(rng.randrange(30, 60)):
        at = BEGIN + timedelta(seconds=rng.randrange(9000))
        yield f"[{_ctime(at)}] {rng.choice(_CHATTER)}"
    if local is not None:
        yield from (f"[{_ctime(died)}] {line}" for line in _FAULTS[kind](local))


def _ctime(at: datetime) -> str:
    return f"{at:%a %b} {at.day:2d} {at:%H:%M:%S %Y}"


_CHATTER = (
    "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "systemd-journald[812]: Data hash table of /run/log/journal/system.journal has a fill level at 75.0",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 237",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
)


def _xid(local: int) -> Iterator[str]:
    bus = BUSES[local]
    yield f"NVRM: GPU at PCI:0000:{bus}:00: GPU-1f2ab1c4-0000-4c1d-9a51-0a1b2c3d4e{bus}"
    yield f"NVRM: Xid (PCI:0000:{bus}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    yield f"NVRM: GPU 0000:{bus}:00.0: GPU has fallen off the bus."


def _oom(local: int) -> Iterator[str]:
    pid = 50_000 + local
    yield "python3.11 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=986"
    yield (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_771,mems_allowed=0-1,oom_memcg=/slurm/job_771,"
        f"task_memcg=/slurm/job_771/step_0,task=python3.11,pid={pid},uid=2001"
    )
    yield (
        f"Memory cgroup out of memory: Killed process {pid} (python3.11) total-vm:412334556kB, anon-rss:208811236kB, "
        "file-rss:88012kB, shmem-rss:1048576kB, UID:2001 pgtables:410220kB oom_score_adj:986"
    )


_FAULTS: MappingProxyType[str, Callable[[int], Iterator[str]]] = MappingProxyType({"xid": _xid, "oom": _oom})


def _gpus(rng: random.Random, kind: str, local: int | None) -> Iterator[str]:
    """``nvidia-smi --query-gpu=… --format=csv``, taken after the end: idle, and the lost GPU is missing."""
    yield (
        "index, name, pci.bus_id, temperature.gpu, utilization.gpu [%], pcie.link.gen.current, "
        "pcie.link.width.current, "
        "pcie.link.width.max, clocks_event_reasons.hw_thermal_slowdown"
    )
    for index, bus in enumerate(BUSES):
        if kind == "xid" and index == local:
            continue
        yield (
            f"{index}, NVIDIA H100 80GB HBM3, 00000000:{bus.upper()}:00.0, {rng.randrange(29, 41)}, 0 %, 1, 16, "
            f"16, Not Active"
        )
