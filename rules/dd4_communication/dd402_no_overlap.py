"""Communication runs after compute instead of beside it.

## Meaning
Collectives and compute hardly ever run at the same time: each waits for the other, so every byte costs step time.

## Impact
The whole transfer time is added to each step on every rank.

## Diagnosis
Overlap share (communication hidden under compute / all communication) is near zero while communication is a noticeable
share of the step. A trace shows that by its kernels. A recording shows it by calls that backward waits for one by one,
or between backward and the update, and by what the training thread waited for (NCCL timed with `--device-timing`: its
stream), counted from when the last rank had come. Usual causes: one bucket holding all gradients, `overlap_comm: false`
(DeepSpeed; its default is true only for stage 3), Megatron without `--overlap-grad-reduce`, a synchronise after each
collective, manual all-reduces after `backward()`.

## Mitigation
Let DDP reduce buckets during backward, turn the framework's overlap option on, and remove waits right after a
collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import Collectives, GradBuckets, JobFacts, ShardUnits, StepBudget
from ddiag.rulekit import Abstain, Confidence, Evidence, Finding, Rule, View
from ddiag.rulekit.cost import severity_for, step_cost

RULE = Rule(
    id="DD402",
    root_cause="RC-51",
    needs=(JobFacts, StepBudget, Collectives),
    optional=(GradBuckets, ShardUnits),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA (host-only traces do not show overlap), or "
    "record with `ddiag run` (NCCL: with --device-timing)",
    symptom="NCCL kernels run serially after backward; low MFU although links are fast",
    evidence="overlap share near 0 with communication above a tenth of the step",
    explained_by=("DD403", "DD404", "DD405", "DD406", "DD407", "DD408", "DD409", "DD801", "DD804"),
)


@dataclass(frozen=True)
class Limits:
    overlap_share: float = 0.20
    """Hidden / all communication below which overlap counts as missing (healthy DDP hides more than half)."""
    comm_share: float = 0.10
    """Communication / step below which overlap does not matter."""
    gain_share: float = 0.05
    """Exposed transfer that overlap could hide / step, for a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""


@dataclass(frozen=True)
class _Measured:
    """ms per step."""

    comm_ms: float
    exposed_ms: float
    """Without waiting for late ranks."""
    overlap_share: float
    how: str


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, comm = signals[JobFacts], signals[StepBudget], signals[Collectives]
    measured = _measured(comm, budget, signals.get(ShardUnits))
    if measured is None or budget.step_ms <= 0:
        return
    if measured.comm_ms / budget.step_ms < limits.comm_share or measured.overlap_share >= limits.overlap_share:
        return
    matched = comm.matched_ranks >= 2 and not comm.mostly_unseen
    gain_ms = min(measured.exposed_ms, budget.mean("compute_ms"))
    share = gain_ms / budget.step_ms
    if share < limits.gain_share:
        return
    if not matched and _mostly_unknowable(budget):
        yield Abstain(
            "one rank's evidence cannot tell a slow transfer from waiting for another rank",
            "profile all ranks (or at least two of the same group) over the same steps",
        )
        return
    yield Finding(
        title=f"only {measured.overlap_share:.0%} of communication overlaps with compute; {share:.0%} of the step "
        f"is exposed",
        severity=severity_for(share, warning=limits.gain_share, critical=limits.critical_share),
        confidence=_confidence(budget, matched=matched),
        evidence=(
            Evidence(
                "overlapped", round(measured.overlap_share, 4), "of communication", limits.overlap_share, measured.how
            ),
            Evidence(
                "communication", round(measured.comm_ms, 3), "ms/step", None, f"union, {budget.n_steps} steady steps"
            ),
            Evidence("could be hidden", round(gain_ms, 3), "ms/step", None, "min(exposed transfer, compute)"),
            Evidence("ranks compared", comm.matched_ranks, "ranks", 2, "waiting subtracted only when >= 2"),
        ),
        fix=_fixes(signals.get(GradBuckets), signals.get(ShardUnits)),
        verify="`ddiag analyze NEW_TRACES`: overlap share above 50 % and exposed communication down",
        cost=step_cost(gain_ms, budget, facts),
        why="communication and compute kernels were intersected over all streams of each rank"
        if comm.stood_still is None
        else "the time in which data moved was intersected with the time in which the training waited for it",
        doubt="tensor-parallel all-reduces stand on the critical path by design and cannot be hidden this way"
        if matched
        else "of one rank alone, part of this time may be waiting for a late rank, which overlap would not remove",
    )


def _measured(comm: Collectives, budget: StepBudget, units: ShardUnits | None) -> _Measured | None:
    """None where the evidence does not show what overlaps: a trace of the host alone, sharded units on a host backend
    (whose prefetching has rules of its own).
    """
    still = comm.stood_still
    if still is not None:
        if units is not None:
            return None
        return _Measured(still.transfer_ms, still.blocked_ms, still.overlap_share, "waits of the training")
    if not comm.timed_on_device:
        return None
    return _Measured(comm.comm_ms, budget.mean("comm_transfer_ms"), comm.overlap_share, "all streams")


def _mostly_unknowable(budget: StepBudget) -> bool:
    """With a single step from a single rank, neither lateness nor repetition can be judged."""
    return budget.n_steps < 2


def _confidence(budget: StepBudget, *, matched: bool) -> Confidence:
    if not matched:
        return Confidence.LOW
    return Confidence.HIGH if budget.n_steps >= 3 else Confidence.MEDIUM


def _fixes(buckets: GradBuckets | None, units: ShardUnits | None) -> tuple[str, ...]:
    general = (
        "do not wait or synchronise right after issuing a collective; use async_op=True and wait where it is needed"
    )
    if units is not None:
        return (
            "FSDP1: backward_prefetch=BACKWARD_PRE and forward_prefetch=True; FSDP2: set_modules_to_forward_prefetch",
            "DeepSpeed: zero_optimization.overlap_comm: true (default true only for stage 3)",
            general,
        )
    if buckets is not None and buckets.count_per_step <= 2:
        return (
            "DDP: lower bucket_cap_mb (25 is the default) so that reduction starts while backward still runs",
            "Megatron: --overlap-grad-reduce --overlap-param-gather; DeepSpeed: overlap_comm: true",
            general,
        )
    return (
        "reduce during backward: wrap the model in DDP (or turn on the framework's overlap: DeepSpeed overlap_comm, "
        "Megatron --overlap-grad-reduce) instead of reducing after backward()",
        general,
    )
