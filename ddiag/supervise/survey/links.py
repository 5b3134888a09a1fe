"""PCI access control, IOMMU, RDMA devices and the kernel modules they need."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

from ddiag.schema.node import CouldNot, Fact
from ddiag.supervise.proc import read_text

INFINIBAND = Path("/sys/class/infiniband")
MODULES = ("nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "ib_uverbs", "mlx5_ib", "efa", "bnxt_re")
TOOL_LIMIT_S = 20
_PASSTHROUGH = re.compile(r"\b(?:iommu=pt|iommu\.passthrough=1|intel_iommu=off|amd_iommu=off|iommu=off)\b")


def facts() -> Iterator[Fact | CouldNot]:
    """See the module."""
    loaded = {line.split()[0] for line in read_text("/proc/modules").splitlines() if line}
    for name in MODULES:
        yield Fact("module.loaded", name in loaded or Path(f"/sys/module/{name}").is_dir(), name)
    yield from _iommu()
    yield from _access_control()
    yield from _rdma()


def _iommu() -> Iterator[Fact]:
    groups = Path("/sys/kernel/iommu_groups")
    yield Fact("iommu.groups", len(list(groups.iterdir())) if groups.is_dir() else 0)
    yield Fact("iommu.passthrough", _PASSTHROUGH.search(read_text("/proc/cmdline")) is not None)


def _access_control() -> Iterator[Fact | CouldNot]:
    """Bridges with ACS on send peer-to-peer traffic up to the root complex (or nowhere)."""
    if which("lspci") is None:
        yield CouldNot("PCI access control (ACS)", "lspci is not installed (package pciutils)")
        return
    done = subprocess.run(
        ["lspci", "-vvv"], capture_output=True, text=True, errors="replace", timeout=TOOL_LIMIT_S, check=False
    )
    controls = re.findall(r"ACSCtl:\s*(.*)", done.stdout)
    if not controls and "<access denied>" in done.stdout:
        yield CouldNot("PCI access control (ACS)", "lspci -vvv shows it to root only")
        return
    yield Fact("pci.acs_bridges", sum("SrcValid+" in control for control in controls))


def _rdma() -> Iterator[Fact]:
    devices = sorted(INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    yield Fact("rdma.devices", len(devices))
    for device in devices:
        for port in sorted((device / "ports").iterdir()):
            name = f"{device.name}:{port.name}"
            for key, file in (("state", "state"), ("physical_state", "phys_state"), ("layer", "link_layer")):
                text = read_text(port / file).strip()
                if text:
                    yield Fact(f"rdma.{key}", text.rpartition(": ")[2], name)
            rate = re.match(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec", read_text(port / "rate"))
            if rate:
                yield Fact("rdma.rate_gbps", float(rate[1]), name)
            for counter in ("symbol_error", "link_downed", "link_error_recovery"):
                text = read_text(port / "counters" / counter).strip()
                if text.isdigit():
                    yield Fact(f"rdma.{counter}", int(text), name)
