"""Shared memory and disks."""

from __future__ import annotations

from collections.abc import Iterator

from ddiag.analysis.preflight.words import GIB, MIB, amount
from ddiag.model.preflight import Check, NodeReport, Outcome

DOCKER_DEFAULT = 64 * MIB
LEAST_SHM = 1 * GIB
"""Per GPU: NCCL's buffers (tens of MiB per peer) and the loader workers' batches."""
LEAST_DISK = 20 * GIB
"""A checkpoint of a small model; less ends a run at its first save."""
FEW_INODES = 0.02


def checks(report: NodeReport) -> Iterator[Check]:
    """See the module."""
    yield from _shared_memory(report)
    yield from _leftovers(report)
    yield from _disks(report)


def _shared_memory(report: NodeReport) -> Iterator[Check]:
    size, free = report.number("shm.size_bytes"), report.number("shm.free_bytes")
    if size is None or free is None:
        return
    gpus = max(report.number("gpu.count") or 0, 1)
    found = f"/dev/shm has {amount(size)}, {amount(free)} free"
    if size <= DOCKER_DEFAULT:
        yield Check(
            "shared memory",
            Outcome.FAIL,
            f"{found} (Docker's default)",
            "loader workers die with 'Bus error', NCCL fails with 'No space left on device' while it extends "
            "/dev/shm/nccl-…",
            "docker run --ipc=host or --shm-size=16g; Kubernetes: an emptyDir with medium: Memory mounted at /dev/shm",
            "storage",
        )
    elif min(size, free) < LEAST_SHM * gpus:
        yield Check(
            "shared memory",
            Outcome.WARN,
            f"{found} for {gpus:.0f} GPU{'s' if gpus > 1 else ''}",
            "loader workers hand their batches over through it, and NCCL keeps its buffers there",
            "docker run --shm-size, or remount: mount -o remount,size=64g /dev/shm; remove what earlier jobs left",
            "storage",
        )
    else:
        yield Check("shared memory", Outcome.OK, found, area="storage")


def _leftovers(report: NodeReport) -> Iterator[Check]:
    left = report.number("shm.leftover_files")
    if left:
        yield Check(
            "left by earlier jobs",
            Outcome.WARN,
            f"{left:.0f} files of NCCL, PyTorch or OpenMP in /dev/shm",
            "killed jobs leave them; they take memory until somebody removes them (a job that runs now has some too)",
            "when no job runs here: rm -f /dev/shm/nccl-* /dev/shm/torch_*",
            "storage",
        )


def _disks(report: NodeReport) -> Iterator[Check]:
    for path, free in report.of("disk.free_bytes"):
        size, inodes = report.number("disk.size_bytes", path), report.number("disk.free_inodes_share", path)
        kind = report.text("disk.file_system", path)
        found = f"{amount(float(free))} free of {amount(size or 0)}" + (f" ({kind})" if kind else "")
        few = inodes is not None and inodes < FEW_INODES
        if float(free) < LEAST_DISK or few:
            yield Check(
                f"disk at {path}",
                Outcome.WARN,
                found + (f", {inodes:.1%} of its inodes free" if few else ""),
                "checkpoints, caches of models and compiled kernels go here; a full disk ends the run at its next save",
                f"free some space, or point HF_HOME, TMPDIR or the checkpoint folder elsewhere; du -xsh "
                f"{path}/* | sort -h | tail",
                "storage",
            )
        else:
            yield Check(f"disk at {path}", Outcome.OK, found, area="storage")
