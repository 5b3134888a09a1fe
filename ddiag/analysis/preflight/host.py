"""Limits, CPUs and memory."""

from __future__ import annotations

from collections.abc import Iterator

from ddiag.analysis.preflight.words import amount, count
from ddiag.model.preflight import UNLIMITED, Check, NodeReport, Outcome

LEAST_FILES = 8192
"""Descriptors: every rank, loader worker, socket and shared tensor takes some; 1,024 is the usual default."""
LEAST_CPU_SHARE = 0.9
BUSY = 0.5
"""Load per CPU from which something else runs here."""


def checks(report: NodeReport) -> Iterator[Check]:
    """See the module."""
    yield from _locked_memory(report)
    yield from _files(report)
    yield from _cpus(report)
    yield from _load(report)
    yield from _memory(report)
    yield from _processes(report)
    yield from _debugging(report)


def _locked_memory(report: NodeReport) -> Iterator[Check]:
    limit = report.number("limit.memlock_bytes")
    if limit is None:
        return
    rdma = report.number("rdma.devices") or 0
    if limit == UNLIMITED or not rdma:
        note = "" if limit == UNLIMITED else ", which is enough without InfiniBand or RoCE"
        yield Check("locked memory", Outcome.OK, f"{amount(limit)}{note}", area="host")
        return
    yield Check(
        "locked memory",
        Outcome.FAIL,
        f"limit {amount(limit)} with {rdma:.0f} RDMA devices",
        "network cards need to lock the buffers they read; NCCL fails with 'Cannot allocate memory' when it "
        "registers them",
        "ulimit -l unlimited (docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK and "
        "LimitMEMLOCK=infinity for slurmd)",
        "host",
    )


def _files(report: NodeReport) -> Iterator[Check]:
    limit = report.number("limit.nofile")
    if limit is None:
        return
    if limit == UNLIMITED or limit >= LEAST_FILES:
        yield Check("open files", Outcome.OK, f"limit {count(limit)}", area="host")
        return
    yield Check(
        "open files",
        Outcome.WARN,
        f"limit {count(limit)}",
        "each loader worker, socket and shared tensor takes a descriptor; large jobs end with 'Too many open files'",
        "ulimit -n 65536 before the job starts (docker run --ulimit nofile=65536)",
        "host",
    )


def _cpus(report: NodeReport) -> Iterator[Check]:
    total, allowed = report.number("cpu.count") or 1, report.number("cpu.allowed")
    quota, gpus = report.number("cgroup.cpus"), report.number("gpu.count") or 0
    usable = min(value for value in (total, allowed, quota) if value is not None)
    found = f"{usable:g} of {total:g} usable" + (f" for {gpus:.0f} GPUs" if gpus else "")
    if gpus and usable < 2 * gpus:
        yield Check(
            "CPUs",
            Outcome.FAIL,
            found,
            "a rank needs a core to launch its kernels and more for its loader workers; with fewer the GPUs wait",
            "give the container or job more CPUs (docker run --cpus, Slurm --cpus-per-task, Kubernetes "
            "resources.limits.cpu)",
            "host",
        )
    elif usable < LEAST_CPU_SHARE * total:
        yield Check(
            "CPUs",
            Outcome.WARN,
            found,
            "the container or an affinity mask keeps the job from some of this node's CPUs",
            "check taskset -cp $$, the cgroup's cpu.max and the launcher's binding options",
            "host",
        )
    else:
        yield Check("CPUs", Outcome.OK, found, area="host")
    governor = report.text("cpu.governor")
    if governor and "powersave" in governor:
        yield Check(
            "CPU frequency", Outcome.WARN, f"governor {governor}",
            "kernels are launched by the CPU: a slow clock leaves gaps between them",
            "cpupower frequency-set -g performance", "host",
        )  # fmt: skip
    if report.get("sysctl.numa_balancing") == 1 and (report.number("numa.nodes") or 1) > 1:
        yield Check(
            "NUMA balancing", Outcome.WARN, "on",
            "the kernel moves pinned workers' pages around while they train, which costs pauses",
            "sysctl -w kernel.numa_balancing=0, and bind ranks: numactl or torchrun --numa-binding", "host",
        )  # fmt: skip


def _load(report: NodeReport) -> Iterator[Check]:
    load, cpus = report.number("cpu.load_1min"), report.number("cpu.count")
    if load is None or not cpus:
        return
    busy = load > BUSY * cpus and load > 1
    yield Check(
        "other work",
        Outcome.WARN if busy else Outcome.OK,
        f"load {load:.1f} on {cpus:.0f} CPUs",
        "something already uses the CPUs; a job started now shares them" if busy else "",
        "ps -eo pid,user,pcpu,stat,comm --sort=-pcpu | head" if busy else "",
        "host",
    )


def _memory(report: NodeReport) -> Iterator[Check]:
    total, available = report.number("memory.total_bytes"), report.number("memory.available_bytes")
    if total is None:
        return
    limit = report.number("cgroup.memory_bytes")
    devices = sum(float(value) for _, value in report.of("gpu.memory.total_bytes"))
    usable = min(total, limit) if limit is not None else total
    found = f"{amount(usable)}" + (f" of {amount(total)} (container limit)" if usable < total else "")
    found += f", {amount(available)} available" if available is not None else ""
    if devices and usable < devices:
        yield Check(
            "host memory",
            Outcome.WARN,
            f"{found}, less than the {amount(devices)} of all GPUs",
            "loading a checkpoint, or offloading, needs as much host memory as all ranks hold together; the "
            "kernel then "
            "kills a rank (exit code -9)",
            "raise the container's memory limit, load checkpoints with mmap, one rank at a time",
            "host",
        )
    else:
        yield Check("host memory", Outcome.OK, found, area="host")


def _processes(report: NodeReport) -> Iterator[Check]:
    blocked, zombies = report.number("process.blocked"), report.number("process.zombies")
    if blocked:
        yield Check(
            "blocked processes", Outcome.WARN, f"{blocked:.0f} in state D",
            "they wait in the kernel for storage, network file systems or a driver, and cannot be killed",
            "ps -eo pid,stat,wchan:30,comm | awk '$2 ~ /^D/'; dmesg | tail", "host",
        )  # fmt: skip
    if zombies and zombies > 20:
        yield Check(
            "zombie processes", Outcome.WARN, f"{zombies:.0f}",
            "an earlier job's workers were not collected; their parent is stuck or is PID 1 of a container "
            "without init",
            "end the parent process; docker run --init", "host",
        )  # fmt: skip
    limit = report.number("cgroup.pids")
    if limit is not None and limit < 4096:
        yield Check(
            "processes and threads", Outcome.WARN, f"the container allows {limit:.0f}",
            "ranks, loader workers and their threads reach this soon: 'Resource temporarily unavailable'",
            "docker run --pids-limit -1, Kubernetes podPidsLimit", "host",
        )  # fmt: skip


def _debugging(report: NodeReport) -> Iterator[Check]:
    scope = report.number("sysctl.ptrace_scope")
    if scope is not None and scope >= 2:
        yield Check(
            "stacks of a hung job", Outcome.WARN, f"kernel.yama.ptrace_scope = {scope:.0f}",
            "ddiag can then not read the stacks of hung ranks with py-spy and falls back on what ranks write "
            "themselves",
            "sysctl -w kernel.yama.ptrace_scope=1, or docker run --cap-add SYS_PTRACE", "host",
        )  # fmt: skip
