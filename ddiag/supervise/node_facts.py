"""``env.json``: the node, its software and the configurations that the command names, read without running anything.

What a job's processes get to see beyond this (launchers and scripts set variables) each of them tells itself.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ddiag.schema.environment import allowed
from ddiag.schema.folder import ENV_JSON, NODES, write_whole
from ddiag.supervise.cgroup import cgroup_limits
from ddiag.supervise.named_configs import named_configs
from ddiag.supervise.proc import field, read_text
from ddiag.supervise.run_folder import Place

_PACKAGES = (
    *("torch", "deepspeed", "lightning", "pytorch-lightning", "transformers", "accelerate", "numpy", "triton"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "flash-attn", "apex", "transformer-engine", "nvidia-ml-py", "mpi4py"),
)
_LIMITS = {name: getattr(resource, name) for name in ("RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_NPROC", "RLIMIT_CORE")}


def write_facts(place: Place, environment: Mapping[str, str]) -> None:
    """``env.json``, or ``nodes/<host>-<pid>.env.json`` of a supervisor that joined a run."""
    manifest = place.manifest
    path = place.path / ENV_JSON
    if not place.founder:
        path = (
            place.path / NODES / f"{re.sub(r'[^A-Za-z0-9._-]', '_', manifest.host)}-{manifest.supervisor_pid}.env.json"
        )
    facts = {
        "format_version": manifest.format_version,
        "host": manifest.host,
        "launcher": manifest.launcher,
        "software": _software(),
        "environment": allowed(environment),
        "machine": _machine(),
        "limits": _limits(),
        "configs": named_configs(manifest.argv, manifest.launcher, environment),
    }
    write_whole(path, json.dumps(facts, indent=1, sort_keys=True) + "\n")


def _software() -> dict[str, Any]:
    """Versions beside ddiag; a job in another Python environment tells its own through its ranks."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "executable": sys.executable, "packages": found}


def _machine() -> dict[str, Any]:
    cpu = read_text("/proc/cpuinfo")
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpu, re.MULTILINE)
    nodes = sorted(path.name for path in Path("/sys/devices/system/node").glob("node[0-9]*"))
    return {
        "kernel": platform.release(),
        "arch": platform.machine(),
        "cpu": model[1] if model else None,
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "numa_nodes": {name: read_text(f"/sys/devices/system/node/{name}/cpulist").strip() for name in nodes},
        "memory_bytes": (field(read_text("/proc/meminfo"), "MemTotal") or 0) * 1024 or None,
        "driver": driver_version(),
    }


def driver_version() -> str | None:
    """Of NVIDIA's kernel module, open or not; None without it."""
    match = re.search(r"Module\s+(?:for \w+\s+)?(\d+[.\d]*)", read_text("/proc/driver/nvidia/version"))
    return match[1] if match else None


def _limits() -> dict[str, Any]:
    """What may stop a job: descriptors, locked memory, shared memory, control groups. -1 is no limit."""
    found: dict[str, Any] = {name.removeprefix("RLIMIT_").lower(): resource.getrlimit(k) for name, k in _LIMITS.items()}
    if Path("/dev/shm").is_dir():
        shm = os.statvfs("/dev/shm")
        found["shm_bytes"], found["shm_free_bytes"] = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
    return {**found, "cgroup": cgroup_limits()}
