"""An environment variable that does not exist, or no longer under that name, was set.

## Meaning
Guides in circulation name variables that NCCL and PyTorch never read. Setting them changes nothing, and the problem
they were meant for stays.

## Impact
None by itself; time is lost believing in it. Old names still work with a warning until they are removed.

## Diagnosis
The names in the environment.

## Mitigation
The right name or option, as the finding says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals_incident import Settings
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View

RULE = Rule(
    id="DD840",
    root_cause="RC-75",
    needs=(Settings,),
    capture="env | grep -E 'NCCL|TORCH|PYTORCH|CUDA' of every rank",
    symptom="a variable was set and nothing changed",
    evidence="names that no version of NCCL or PyTorch reads",
    applies=lambda signals: (s := signals.get(Settings)) is not None and bool(s.of("env")),
    references=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",
    ),
)
UNKNOWN = {
    "NCCL_TIMEOUT": "no such variable: the timeout is PyTorch's, init_process_group(timeout=timedelta(…)) or "
    "new_group(timeout=…), 10 min for NCCL since torch 2.2 (30 min before and for gloo); on expiry the watchdog dumps "
    "and aborts, it never retries. About 30 s exist only in InfiniBand: NCCL_IB_TIMEOUT (20; 18 before NCCL 2.23) with "
    "NCCL_IB_RETRY_CNT 7",
    "NCCL_SOCKET_TIMEOUT": "no such variable: NCCL_SOCKET_RETRY_CNT and NCCL_SOCKET_RETRY_SLEEP_MSEC (NCCL >= 2.24)",
    "TORCH_NCCL_TIMEOUT": "no such variable: init_process_group(timeout=…)",
    "TORCH_DISTRIBUTED_TIMEOUT": "no such variable: init_process_group(timeout=…)",
    "NCCL_RETRY_COUNT": "no such variable: NCCL_IB_RETRY_CNT (InfiniBand) or NCCL_SOCKET_RETRY_CNT",
    "NCCL_IB_ENABLE": "no such variable: NCCL_IB_DISABLE=0 is the default",
    "NCCL_P2P_ENABLE": "no such variable: NCCL_P2P_DISABLE=0 is the default",
    "NCCL_LOG_LEVEL": "no such variable: NCCL_DEBUG=INFO",
    "PYTORCH_CUDA_ALLOC_CONFIG": "no such variable: PYTORCH_CUDA_ALLOC_CONF (torch >= 2.10: PYTORCH_ALLOC_CONF)",
    "PYTORCH_ALLOC_CONFIG": "no such variable: PYTORCH_ALLOC_CONF (torch >= 2.10), PYTORCH_CUDA_ALLOC_CONF before",
}
RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING since torch 2.2; 0 makes a timeout hang for ever",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT since torch 2.2",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG since torch 2.2",
}


@dataclass(frozen=True)
class Limits:
    shown: int = 8


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    found = {one.key: one for one in signals[Settings].of("env")}
    wrong = [name for name in (*UNKNOWN, *RENAMED) if name in found][: limits.shown]
    for name in wrong:
        renamed = name in RENAMED
        yield Finding(
            title=f"{name} is an old name" if renamed else f"{name} is read by nothing",
            severity=Severity.INFO,
            confidence=Confidence.HIGH,
            culprits=Culprits(where=name),
            evidence=(Evidence(name, found[name].value, "", None, found[name].source),),
            fix=(RENAMED[name] if renamed else UNKNOWN[name],),
            verify="export it before the command (`a=0 && command` does not export); the process's own environment "
            "is in "
            "/proc/PID/environ",
            why="neither NCCL's nor PyTorch's sources read this name" if not renamed else "renamed in torch 2.2",
        )
