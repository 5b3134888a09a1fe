"""Versions that must fit each other, and the clock."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddiag.model.preflight import Check, NodeReport, Outcome


def checks(report: NodeReport) -> Iterator[Check]:
    """See the module."""
    yield from _torch(report)
    yield from _nccl(report)
    if report.get("clock.synchronised") is False:
        yield Check(
            "clock",
            Outcome.WARN,
            "not synchronised",
            "logs of several nodes cannot be put in order, and tokens and certificates fail when it drifts",
            "systemctl enable --now chronyd (or systemd-timesyncd)",
            "software",
        )
    elif report.get("clock.synchronised") is True:
        yield Check("clock", Outcome.OK, "synchronised", area="software")


def _torch(report: NodeReport) -> Iterator[Check]:
    version, gpus = report.text("package.version", "torch"), report.number("gpu.count") or 0
    if not version:
        return
    build = re.search(r"\+(cpu|cu(\d+)(\d)|rocm[\d.]+)", version)
    if gpus and build and build[1] == "cpu":
        yield Check(
            "PyTorch", Outcome.FAIL, f"{version}: a CPU build on a node with {gpus:.0f} GPUs",
            "torch.cuda.is_available() is False: the job trains on the CPU or fails", "install the CUDA build of torch",
            "software",
        )  # fmt: skip
        return
    supported = re.fullmatch(r"(\d+)\.(\d+)", report.text("driver.cuda"))
    if build and build[2] and supported:
        built, highest = (int(build[2]), int(build[3])), (int(supported[1]), int(supported[2]))
        if built[0] > highest[0]:
            yield Check(
                "PyTorch and driver", Outcome.FAIL,
                f"torch {version} needs CUDA {built[0]}, the driver supports up to {highest[0]}.{highest[1]}",
                "CUDA fails to initialise: 'driver too old' (minor versions may differ, major ones may not)",
                "update the driver, or install torch for the older CUDA", "software",
            )  # fmt: skip
            return
    yield Check("PyTorch", Outcome.OK, version, area="software")


def _nccl(report: NodeReport) -> Iterator[Check]:
    packages = [part for part in report.text("nccl.packages").split(", ") if part]
    if len(packages) > 1:
        yield Check(
            "NCCL", Outcome.WARN, f"installed twice: {', '.join(packages)}",
            "which one is loaded depends on the order of imports; ranks with different versions do not connect",
            "uninstall the one that torch does not ask for (pip show torch)", "software",
        )  # fmt: skip
    elif report.get("nccl.replaced_by_environment") is True:
        yield Check(
            "NCCL", Outcome.WARN, "LD_PRELOAD or LD_LIBRARY_PATH puts another NCCL before torch's own",
            "nodes without that variable run another version and do not connect",
            "make sure it is so on all nodes; NCCL_DEBUG=VERSION prints what is used", "software",
        )  # fmt: skip
    elif packages:
        yield Check("NCCL", Outcome.OK, packages[0], area="software")
