"""Which environment variables a run folder may hold: an allow-list, and no secrets even then."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddiag.schema.secrets import redact_environment

MOST_CHARACTERS = 2000
"""Of one value."""
_ALLOWED = re.compile(
    r"(NCCL|RCCL|TORCH|PYTORCH|CUDA|NVIDIA|HIP|HSA|AMD|ROCR|GLOO|OMP|MKL|KMP|GOMP|UCX|FI|DS|DEEPSPEED|ACCELERATE|FSDP"
    r"|TORCHELASTIC|SLURM|OMPI_COMM_WORLD|OMPI_MCA|PMIX|PMI|DDIAG|MALLOC|XLA|TRITON|TORCHINDUCTOR)_[A-Z0-9_]+"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|LD_PRELOAD|PYTHON(HASHSEED|OPTIMIZE|UNBUFFERED|MALLOC)"
    r"|TOKENIZERS_PARALLELISM|CONDA_DEFAULT_ENV|KUBERNETES_SERVICE_HOST"
)


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be kept, without credentials inside their values."""
    kept = {name: value for name, value in environment.items() if _ALLOWED.fullmatch(name)}
    return {name: value[:MOST_CHARACTERS] for name, value in redact_environment(kept).items()}
