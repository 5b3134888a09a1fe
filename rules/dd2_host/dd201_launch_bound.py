"""The host cannot launch kernels as fast as the device runs them.

## Meaning
The work is cut into so many small kernels that launching one takes longer than running it. The device goes hungry
between kernels although the host is busy all the time.

## Impact
The step is as long as the host needs to issue it; a faster device changes nothing.

## Diagnosis
Short gaps between kernels in which the host was still launching (the launch call began after the previous kernel had
ended), small kernels, many launches per step. Many small kernels without gaps are not launch-bound. Long gaps are
another cause (DD204), gaps behind a blocking call are DD202, gaps in the loader DD101.

## Mitigation
Fewer launches (torch.compile, fused optimizer, fused attention), launches replayed by the device (CUDA graphs), or more
work per launch (larger micro-batch).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import HostLaunch, JobFacts, OptimizerStep, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, host_time_unknown, over_steps, severity_over_steps

RULE = Rule(
    id="DD201",
    root_cause="RC-56",
    needs=(JobFacts, StepBudget, HostLaunch),
    optional=(OptimizerStep,),
    capture="profile 5+ steps with torch.profiler, activities CPU and CUDA, with_stack=False",
    symptom="nvidia-smi says 100 % busy, yet SM activity and throughput are low; one CPU core per rank is at 100 %",
    evidence="kernels of a few µs, launched one by one, with the device idle between them",
    applies=lambda signals: (facts := signals.get(JobFacts)) is None or facts.device_kind != "cpu",
    explained_by=("DD804", "DD1103", "DD301"),
    references=("https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs",),
)


@dataclass(frozen=True)
class Limits:
    gap_share: float = 0.10
    """Short launch gaps / step for a finding: every eager job has a few per cent."""
    critical_share: float = 0.30
    """From here the device idles for a third of the step."""
    gap_ms: float = 1.0
    """Below this nothing is won by any remedy."""
    kernel_us: float = 30.0
    """Median kernel up to which launching (5-10 µs each, more through Python) can be the bottleneck."""
    busy_share: float = 0.5
    """Training thread inside operators or runtime calls / step: below it, Python between them is the cause (DD204)."""
    usual_launch_us: float = 30.0
    """Host time per launch that an eager job needs on an idle CPU (10-20 µs, with the profiler on a little more)."""
    launches: float = 100.0
    """Launches per step: fewer cannot make the host the bottleneck."""
    long_gap_part: float = 0.5
    """When long gaps make up more than this part, launching is not the cause (DD204 is)."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, host = signals[JobFacts], signals[StepBudget], signals[HostLaunch]
    if not budget.on_device or budget.step_ms <= 0:
        return
    idle_ms = budget.mean("host_ms")
    gap_ms = min(host.launch_gap_ms, idle_ms)
    long_ms = _long_gap_ms(host, budget)
    short_ms = max(gap_ms - long_ms, 0.0)
    share = short_ms / budget.step_ms
    if short_ms < limits.gap_ms or share < limits.gap_share or long_ms > limits.long_gap_part * gap_ms:
        return
    if host.median_kernel_us > limits.kernel_us or host.launches_per_step < limits.launches:
        return
    if host.host_busy_share < limits.busy_share:
        return
    unknown = host_time_unknown(budget, facts)
    if unknown is not None:
        yield unknown
        return
    yield Finding(
        title=f"launch-bound: {host.launches_per_step:,.0f} launches per step of kernels around "
        f"{host.median_kernel_us:.1f} µs leave the device idle for {short_ms:.1f} ms ({share:.0%} of the step)",
        severity=severity_over_steps(share, budget, warning=limits.gap_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(where="kernel launches"),
        evidence=(
            Evidence("idle between launches", round(short_ms, 3), "ms/step", limits.gap_ms, over_steps(budget)),
            Evidence("idle between launches", round(share, 4), "of step", limits.gap_share, "without gaps over 5 ms"),
            Evidence("median kernel", round(host.median_kernel_us, 2), "µs", limits.kernel_us, "all compute kernels"),
            Evidence("launches", round(host.launches_per_step, 1), "per step", limits.launches, "runtime launch calls"),
            Evidence(
                "host busy", round(host.host_busy_share, 3), "of step", limits.busy_share, "training thread in calls"
            ),
            Evidence(
                "host time per launch",
                round(_launch_us(host, budget), 1),
                "µs",
                limits.usual_launch_us,
                "time in calls / launches",
            ),
            Evidence("graph launches", round(host.graph_launches_per_step, 1), "per step", None, "cudaGraphLaunch"),
        ),
        fix=_fixes(host, signals.get(OptimizerStep), slow_host=_launch_us(host, budget) > 2 * limits.usual_launch_us),
        verify="`ddiag analyze NEW_TRACES`: launches per step fall several-fold and idle between launches is below "
        f"{limits.gap_share:.0%} of the step",
        cost=step_cost(short_ms, budget, facts),
        why="the device ran dry before the next launch call had begun, again and again, without a blocking call or the "
        "loader in between",
        doubt=doubts(facts, "the profiler itself adds a few µs to every launch; a step timed without it is shorter"),
    )


def _long_gap_ms(host: HostLaunch, budget: StepBudget) -> float:
    """Long gaps per step, mean over ranks."""
    if host.long_gaps is None or host.long_gaps.is_empty():
        return 0.0
    steps = budget.table["rank"].n_unique() * max(budget.n_steps, 1)
    return float(host.long_gaps["gap_ms"].sum()) / steps


def _launch_us(host: HostLaunch, budget: StepBudget) -> float:
    return budget.step_ms * 1e3 * host.host_busy_share / host.launches_per_step


_OPTIMIZER_SHARE = 0.05
"""Optimizer kernels / launches from which a fused optimizer makes a difference."""


def _fixes(host: HostLaunch, optimizer: OptimizerStep | None, *, slow_host: bool) -> tuple[str, ...]:
    steps = ["a larger micro-batch, if memory allows: the same launches then carry more work"]
    if host.graph_launches_per_step < 1:
        steps.append(
            'torch.compile(model, mode="reduce-overhead"), which fuses kernels and replays them as CUDA graphs (static '
            "shapes), or torch.cuda.make_graphed_callables around the static part"
        )
    many = optimizer is not None and optimizer.kernels_per_step >= _OPTIMIZER_SHARE * host.launches_per_step
    if optimizer is not None and many and optimizer.implementation in ("for_loop", "foreach"):
        steps.append(
            f"{optimizer.name or 'optimizer'}(fused=True): {optimizer.kernels_per_step:.0f} kernels per step now"
        )
    if slow_host:
        steps.append(
            "each launch takes this host unusually long: check its CPU (clock, cgroup throttling, `taskset -cp PID`, "
            "other processes on the same cores, torchrun --numa-binding=node)"
        )
    steps.append(
        "fuse what is many small operators by hand: scaled_dot_product_attention, fused norms, foreach clipping"
    )
    return tuple(steps)
