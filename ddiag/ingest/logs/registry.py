"""The parsers every text file is offered to."""

from __future__ import annotations

from collections.abc import Callable

from ddiag.ingest.logs.cuda import CudaMemory
from ddiag.ingest.logs.deepspeed import DeepSpeed
from ddiag.ingest.logs.desync import Desync, Fingerprint
from ddiag.ingest.logs.environment import Environment
from ddiag.ingest.logs.faults import Faults
from ddiag.ingest.logs.gloo import Barrier, Gloo
from ddiag.ingest.logs.gpu_texts import GpuTexts
from ddiag.ingest.logs.heartbeat import Heartbeat
from ddiag.ingest.logs.host_tools import HostTools
from ddiag.ingest.logs.infiniband import InfiniBandTools
from ddiag.ingest.logs.kernel import KernelLog
from ddiag.ingest.logs.launchers import Launchers
from ddiag.ingest.logs.line import LogParser
from ddiag.ingest.logs.megatron import Megatron
from ddiag.ingest.logs.nccl import NcclLog
from ddiag.ingest.logs.nccl_tests import NcclTests
from ddiag.ingest.logs.nvidia_smi_csv import NvidiaSmiCsv
from ddiag.ingest.logs.nvidia_smi_links import NvidiaSmiLinks
from ddiag.ingest.logs.nvidia_smi_query import NvidiaSmiQuery
from ddiag.ingest.logs.nvidia_smi_table import NvidiaSmiTable
from ddiag.ingest.logs.pci import PciTools
from ddiag.ingest.logs.printed_settings import PrintedSettings
from ddiag.ingest.logs.progress import Phases, Progress
from ddiag.ingest.logs.rank_words import RankWords
from ddiag.ingest.logs.ras import Ras
from ddiag.ingest.logs.remarks import Remarks
from ddiag.ingest.logs.slurm import Slurm
from ddiag.ingest.logs.store import Store
from ddiag.ingest.logs.torchrun import Torchrun
from ddiag.ingest.logs.traceback import Traceback
from ddiag.ingest.logs.trainers import Trainers
from ddiag.ingest.logs.watchdog import Watchdog
from ddiag.ingest.logs.xpu_timer import XpuTimer

PARSERS: tuple[Callable[[], LogParser], ...] = (
    Watchdog,
    Heartbeat,
    Desync,
    Fingerprint,
    Gloo,
    Barrier,
    Store,
    Torchrun,
    Launchers,
    Traceback,
    Faults,
    Progress,
    Phases,
    RankWords,
    Remarks,
    CudaMemory,
    DeepSpeed,
    Megatron,
    Trainers,
    Slurm,
    Ras,
    NcclTests,
    PrintedSettings,
    Environment,
    GpuTexts,
    HostTools,
    InfiniBandTools,
    KernelLog,
    NcclLog,
    NvidiaSmiCsv,
    NvidiaSmiLinks,
    NvidiaSmiQuery,
    NvidiaSmiTable,
    PciTools,
    XpuTimer,
)
"""Makers of parsers, one object per file."""
