"""Every kind of event a reader may give, by area, with its fields; the docs of ``log_events`` come from here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ddiag.model.event_kinds.c10d import C10D
from ddiag.model.event_kinds.cuda import CUDA
from ddiag.model.event_kinds.deepspeed import DEEPSPEED
from ddiag.model.event_kinds.gpu import GPU
from ddiag.model.event_kinds.inspector import INSPECTOR
from ddiag.model.event_kinds.kernel import KERNEL
from ddiag.model.event_kinds.megatron import MEGATRON
from ddiag.model.event_kinds.nccl import NCCL
from ddiag.model.event_kinds.node import NODE
from ddiag.model.event_kinds.process import PROCESS
from ddiag.model.event_kinds.ras import RAS
from ddiag.model.event_kinds.slurm import SLURM
from ddiag.model.event_kinds.trainers import TRAINERS

EVENT_KINDS: Mapping[str, str] = MappingProxyType(
    {
        **C10D,
        **CUDA,
        **DEEPSPEED,
        **GPU,
        **INSPECTOR,
        **KERNEL,
        **MEGATRON,
        **NCCL,
        **NODE,
        **PROCESS,
        **RAS,
        **SLURM,
        **TRAINERS,
    }
)
"""kind -> meaning and fields."""
