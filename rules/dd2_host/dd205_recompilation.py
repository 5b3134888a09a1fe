"""Something is compiled again inside steady steps.

## Meaning
torch.compile (or a JIT kernel) meets inputs it has not seen (a new shape, dtype, flag or Python value) and compiles
again, on the training thread, while the device waits.

## Impact
Each recompilation takes 0.1 s to minutes on one rank, and every other rank waits. After eight of one function
(`recompile_limit`) PyTorch gives up and runs it uncompiled for good.

## Diagnosis
Compilation spans inside steps that are not warm-up. The first compilation of each graph is expected and left out. A
recording tells which function is compiled: only those compiled again and again count.

## Mitigation
Make the changing thing static or declare it dynamic; `TORCH_LOGS=recompiles` prints which guard failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, PythonOverhead, StepBudget
from ddiag.rulekit import Abstain, Culprits, Evidence, Finding, Rule, View, step_cost
from ddiag.rulekit.quality import confidence_for, doubts, over_steps, severity_over_steps

RULE = Rule(
    id="DD205",
    root_cause="RC-87",
    needs=(JobFacts, StepBudget, PythonOverhead),
    capture="profile 10+ steps after warm-up with torch.profiler, activities CPU and CUDA",
    symptom="single steps take seconds, long after the start; TORCH_LOGS=recompiles keeps printing",
    evidence="compilation spans inside steady steps",
    references=("https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",),
)


@dataclass(frozen=True)
class Limits:
    compile_share: float = 0.05
    """Compilation / time of all steady steps for a warning."""
    critical_share: float = 0.25
    """From here it is the first thing to fix."""
    compile_ms: float = 50.0
    """Compilation in the whole window below which it is a cache look-up, not a recompilation."""


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, overhead = signals[JobFacts], signals[StepBudget], signals[PythonOverhead]
    steps = overhead.compile_steps or budget.n_steps
    per_step_ms = overhead.compile_ms / max(steps, 1)
    share = per_step_ms / budget.step_ms if budget.step_ms > 0 else 0.0
    if overhead.compile_ms < limits.compile_ms or share < limits.compile_share:
        return
    which = "steady steps" if overhead.compile_steps is None else "steps after warm-up"
    yield Finding(
        title=f"compilation inside {steps} {which} takes {overhead.compile_ms:,.0f} ms ({per_step_ms:.1f} ms per step)",
        severity=severity_over_steps(share, budget, warning=limits.compile_share, critical=limits.critical_share),
        confidence=confidence_for(budget, facts, host_timed=True),
        culprits=Culprits(where=", ".join(overhead.compiled_again[:3]) or "torch.compile"),
        evidence=(
            Evidence(
                "compilation", round(overhead.compile_ms, 1), "ms", limits.compile_ms, "all steady steps, worst rank"
            ),
            Evidence("compilation", round(per_step_ms, 3), "ms/step", None, over_steps(budget)),
            Evidence("compilation", round(share, 4), "of step", limits.compile_share, "time / median step"),
        ),
        fix=(
            "run with TORCH_LOGS=recompiles: it names the guard that failed and the value that changed",
            "changing shapes: torch.compile(dynamic=True) or torch._dynamo.mark_dynamic(tensor, dim), or pad to a few "
            "fixed lengths (buckets); drop_last=True for the odd last batch",
            "changing Python values (step counters, learning rates): pass them as tensors",
            "keep compiled code between runs: TORCHINDUCTOR_CACHE_DIR on a local disk (and "
            "torch.compiler.save_cache_artifacts for new nodes)",
        ),
        verify="TORCH_LOGS=recompiles prints nothing after warm-up; `ddiag analyze NEW_TRACES` shows no compilation",
        cost=step_cost(per_step_ms, budget, facts),
        why="compilation spans lie inside steps that are not warm-up",
        doubt=doubts(facts, "a capture taken right after the start may contain first compilations: record later steps"),
    )
