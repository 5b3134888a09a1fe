"""Errors of CUDA that only hardware or the driver cause, and the results of ``dcgmi diag``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddiag.ingest.logs.line import Line
from ddiag.model.incident import Event, Seen

_CUDA = (
    ("ecc", re.compile(r"uncorrectable ECC error encountered|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE")),
    ("nvlink", re.compile(r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE")),
    ("not_initialized", re.compile(r"system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY")),
    ("contained", re.compile(r"cudaErrorContained|contained.*memory error|invalid/uncorrectable.*contained")),
    ("hardware_stack", re.compile(r"CUDA error: hardware stack error")),
    (
        "lost",
        re.compile(r"(?:CUDA error|RuntimeError): .*GPU is lost|NVML_ERROR_GPU_IS_LOST|GPU has fallen off the bus"),
    ),
)
_DIAG = re.compile(r"^\s*\|\s*([A-Z][\w /()-]+?)\s*\|\s*(Pass|Fail|Warn|Skip)(?:\s*-\s*(?:GPUs?: ?([\d, ]+)|All))?")


class GpuTexts:
    """``gpu.cuda_hardware_error`` and ``gpu.diag``."""

    needles: tuple[str, ...] = (
        "ECC",
        "NVLink error",
        "NvlinkUncorrectable",
        "NVLINK_UNCORRECTABLE",
        "not yet initialized",
        "SystemNotReady",
        "SYSTEM_NOT_READY",
        "cudaErrorContained",
        "hardware stack error",
        "GPU is lost",
        "GPU_IS_LOST",
        "| Pass",
        "| Fail",
        "| Warn",
    )

    def line(self, line: Line) -> Iterator[Seen]:
        if "NCCL WARN" in line.text or "NVRM" in line.text:
            return
        for what, pattern in _CUDA:
            match = pattern.search(line.text)
            if match is not None:
                yield Event("gpu.cuda_hardware_error", {"what": what, "message": match[0]})
                return
        diag = _DIAG.search(line.text)
        if diag is not None and diag[2] != "Skip":
            yield Event("gpu.diag", {"test": diag[1].strip(), "result": diag[2].lower(), "gpu": diag[3]})

    def end(self) -> Iterable[Seen]:
        return ()
