"""The parsers every text file is offered to."""

from __future__ import annotations

from collections.abc import Callable

from ddiag.ingest.logs.cuda import CudaMemory
from ddiag.ingest.logs.deepspeed import DeepSpeed
from ddiag.ingest.logs.line import LogParser
from ddiag.ingest.logs.megatron import Megatron
from ddiag.ingest.logs.nccl_tests import NcclTests
from ddiag.ingest.logs.printed_settings import PrintedSettings
from ddiag.ingest.logs.slurm import Slurm
from ddiag.ingest.logs.trainers import Trainers

PARSERS: tuple[Callable[[], LogParser], ...] = (
    CudaMemory,
    DeepSpeed,
    Megatron,
    Trainers,
    Slurm,
    NcclTests,
    PrintedSettings,
)
"""Makers of parsers, one object per file."""
