"""Memory of the process itself, but outside PyTorch's allocator, is missing when the device is full.

## Meaning
The CUDA context, NCCL's channels and buffers, cuBLAS workspaces and libraries with allocators of their own take memory
that PyTorch neither sees nor can give back.

## Impact
Out of memory although PyTorch uses far less than the device has; NCCL or cuBLAS fails to allocate.

## Diagnosis
"this process has X in use" minus what PyTorch has reserved is several GiB; or NCCL and cuBLAS report out of memory
themselves.

## Mitigation
Fewer communicators and channels; no second context on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts
from ddiag.model.signals_incident import Deaths, Events
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, State, View, human_bytes
from ddiag.rulekit.oom import OUTSIDE, OUTSIDE_BYTES, culprit_ranks, gravity, numbers, of_reason
from ddiag.rulekit.values import began, ranks_of

RULE = Rule(
    id="DD627",
    root_cause="RC-77",
    needs=(Events,),
    optional=(Deaths, JobFacts),
    capture="the full OutOfMemoryError line, NCCL_DEBUG=INFO logs, nvidia-smi beside torch.cuda.memory_reserved()",
    symptom="out of memory though PyTorch uses 60 of 80 GB; CUDA error: out of memory from NCCL, cuBLAS or cuDNN",
    evidence="process memory - reserved >= 5 GiB; allocation failures below the allocator",
    applies=lambda signals: (events := signals.get(Events)) is not None and events.has("cuda.oom", "cuda.oom_driver"),
    explained_by=("DD630", "DD626"),
)
FIXES = (
    "fewer process groups, and lazily: each communicator takes channels x 4-8 MB; NCCL_MAX_NCHANNELS, NCCL_BUFFSIZE",
    "NCCL_NVLS_ENABLE=0 and NCCL_CUMEM_ENABLE=0 show what their buffers cost",
    "init_process_group(device_id=torch.device('cuda', local_rank)) and set_device before the first CUDA call: no "
    "second "
    "context on GPU 0",
    "leave room: torch.cuda.set_per_process_memory_fraction(0.9)",
)
VERIFY = "nvidia-smi's used memory minus torch.cuda.memory_reserved() per rank; count of NCCL 'Init COMPLETE' lines"


@dataclass(frozen=True)
class Limits:
    shown: int = 6


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    events = signals[Events]
    found = of_reason(events, OUTSIDE)
    below = [e for e in events.of("cuda.oom_driver") if e.word("what") != "pinned"]
    if found:
        worst = max(found, key=lambda one: one.outside)
        severity, state = gravity(found, signals.get(Deaths))
        yield Finding(
            title=f"{human_bytes(worst.outside)} of {worst.gpu} are this process's own, but outside PyTorch's "
            f"allocator",
            severity=severity,
            confidence=Confidence.HIGH,
            culprits=Culprits(ranks=culprit_ranks(found, signals.get(Deaths), signals.get(JobFacts))),
            evidence=tuple(
                Evidence(
                    f"{one.gpu}: outside the allocator",
                    round(one.outside / 2**30, 2),
                    "GiB",
                    OUTSIDE_BYTES / 2**30,
                    one.event.source,
                )
                for one in found[: limits.shown]
            ),
            fix=FIXES,
            verify=VERIFY,
            state=state,
            began_ns=began(one.event for one in found),
            why=numbers(worst),
        )
    elif below and not events.has("cuda.oom"):
        yield Finding(
            title=f"memory ran out below PyTorch's allocator ({below[0].word('error')}), which itself did not complain",
            severity=Severity.CRITICAL,
            confidence=Confidence.MEDIUM,
            culprits=Culprits(ranks=ranks_of(below)),
            evidence=tuple(
                Evidence("failed below the allocator", e.word("error"), "", None, e.source)
                for e in below[: limits.shown]
            ),
            fix=FIXES,
            verify=VERIFY,
            state=State.CRASHED,
            began_ns=began(below),
            why="an allocation of a library or of the context failed while PyTorch holds its cache",
            doubt="another process on the device has the same effect: nvidia-smi shows who",
        )
