"""Limits of the process, CPUs, memory and what the container allows."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from ddiag.schema.node import UNLIMITED, CouldNot, Fact
from ddiag.supervise.cgroup import cgroup_limits
from ddiag.supervise.proc import field, read_text

_LIMITS = {
    "limit.nofile": resource.RLIMIT_NOFILE,
    "limit.nproc": resource.RLIMIT_NPROC,
    "limit.memlock_bytes": resource.RLIMIT_MEMLOCK,
    "limit.core_bytes": resource.RLIMIT_CORE,
}
_SYSCTLS = {
    "sysctl.numa_balancing": "kernel/numa_balancing",
    "sysctl.ptrace_scope": "kernel/yama/ptrace_scope",
    "sysctl.pid_max": "kernel/pid_max",
    "sysctl.somaxconn": "net/core/somaxconn",
    "sysctl.swappiness": "vm/swappiness",
    "sysctl.overcommit": "vm/overcommit_memory",
}


def facts() -> Iterator[Fact | CouldNot]:
    """See the module."""
    for key, which in _LIMITS.items():
        soft, _ = resource.getrlimit(which)
        yield Fact(key, UNLIMITED if soft == resource.RLIM_INFINITY else soft)
    yield from _cpus()
    yield from _memory()
    for key, name in _SYSCTLS.items():
        text = read_text(f"/proc/sys/{name}").strip()
        if text.lstrip("-").isdigit():
            yield Fact(key, int(text))
    yield Fact("kernel.release", platform.release())
    yield Fact("container", _container())


def _cpus() -> Iterator[Fact]:
    yield Fact("cpu.count", os.cpu_count() or 1)
    yield Fact("cpu.allowed", len(os.sched_getaffinity(0)))
    yield Fact("numa.nodes", max(len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))), 1))
    governors = {
        read_text(path).strip() for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    if governors:
        yield Fact("cpu.governor", "+".join(sorted(governors)))
    quota = cgroup_limits().get("cpus")
    if quota is not None:
        yield Fact("cgroup.cpus", quota)
    load = os.getloadavg()[0]
    yield Fact("cpu.load_1min", round(load, 2))


def _memory() -> Iterator[Fact]:
    text = read_text("/proc/meminfo")
    for key, name in (
        ("memory.total_bytes", "MemTotal"),
        ("memory.available_bytes", "MemAvailable"),
        ("memory.swap_bytes", "SwapTotal"),
    ):
        value = field(text, name)
        if value is not None:
            yield Fact(key, value * 1024)
    limits = cgroup_limits()
    for key, name in (("cgroup.memory_bytes", "memory_bytes"), ("cgroup.pids", "pids")):
        if name in limits:
            yield Fact(key, limits[name])


def _container() -> str:
    """docker, podman, kubernetes, apptainer, or none as far as one can tell from inside."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "docker" if Path("/.dockerenv").exists() else "none"
