"""DDP searches the autograd graph for unused parameters in every step.

## Meaning
`find_unused_parameters=True` walks the graph after each forward and reduces one more bitmap. It is needed only when the
set of used parameters really varies.

## Impact
Typically 5–10 % of the step, on the host, between forward and backward.

## Diagnosis
The search is visible as a host span of its own in each step of a trace. A recording does not see what it takes, but
knows whether it ever found anything.

## Mitigation
Turn it off, or use `static_graph=True` when the used set does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddiag.model.signals import JobFacts, PythonOverhead, StepBudget
from ddiag.model.signals_recorded import UnusedSearch
from ddiag.rulekit import Abstain, Confidence, Culprits, Evidence, Finding, Rule, Severity, View
from ddiag.rulekit.cost import severity_for, step_cost

RULE = Rule(
    id="DD802",
    root_cause="RC-71",
    needs=(JobFacts, StepBudget, PythonOverhead),
    optional=(UnusedSearch,),
    capture="profile 5+ steps with torch.profiler(with_stack=True), activities CPU and CUDA",
    symptom="DDP slower than expected; a warning about find_unused_parameters once",
    evidence="a search span in each step above 2 % of it, or a search that never found an unused parameter",
)


@dataclass(frozen=True)
class Limits:
    share: float = 0.02
    """Search time / step for a warning."""
    critical_share: float = 0.30
    """Never reached in practice; kept so that a pathological graph stands out."""
    looks: int = 8
    """Iterations a recording must have looked at before "never" means something."""
    sure_looks: int = 16
    """From here some of them come from later in the run."""


_OFF = "DistributedDataParallel(find_unused_parameters=False) if every parameter gets a gradient in every step"
_STATIC = "static_graph=True if the used set is constant"
_KEEP = "keep it only if the set of used parameters depends on the data"


def check(signals: View, limits: Limits) -> Iterator[Finding | Abstain]:
    facts, budget, python = signals[JobFacts], signals[StepBudget], signals[PythonOverhead]
    search = signals.get(UnusedSearch)
    if python.find_unused_ms is None or budget.step_ms <= 0:
        if search is not None and search.looks >= limits.looks and not search.ever_unused:
            yield _in_vain(search, limits)
        return
    share = python.find_unused_ms / budget.step_ms
    if share < limits.share:
        return
    yield Finding(
        title=f"DDP spends {python.find_unused_ms:.1f} ms per step ({share:.0%}) searching for unused parameters",
        severity=severity_for(share, warning=limits.share, critical=limits.critical_share),
        confidence=Confidence.LOW if facts.with_stack else Confidence.MEDIUM,
        culprits=Culprits(where="DistributedDataParallel(find_unused_parameters=True)"),
        evidence=(
            Evidence("search", round(python.find_unused_ms, 3), "ms/step", None, "host span, mean over ranks"),
            Evidence("share of the step", round(share, 4), "of step", limits.share, ""),
        ),
        fix=(_STATIC, _KEEP) if search is not None and search.ever_unused else (_OFF, _STATIC, _KEEP),
        verify="`ddiag analyze NEW_TRACES`: the span is gone and the step is shorter",
        cost=step_cost(python.find_unused_ms, budget, facts),
        why="the span repeats in each steady step",
        doubt="recording Python stacks makes host spans longer than they are without the profiler",
    )


def _in_vain(search: UnusedSearch, limits: Limits) -> Finding:
    """A search that never found anything; what it takes is not known."""
    return Finding(
        title=f"find_unused_parameters=True, and no parameter was unused in {search.looks} iterations looked at",
        severity=Severity.INFO,
        confidence=Confidence.HIGH if search.looks >= limits.sure_looks else Confidence.MEDIUM,
        culprits=Culprits(where="DistributedDataParallel(find_unused_parameters=True)"),
        evidence=(
            Evidence("iterations looked at", search.looks, "", limits.looks, "DDP's own account"),
            Evidence("unused parameters", 0, "bytes", None, "in any of them"),
        ),
        fix=(_OFF, _STATIC, _KEEP),
        verify="`ddiag run` again: the step is shorter, and no collective is labelled unused",
        why="DDP notes after each search which parameters were unused, and there were none",
        doubt="torch notes the first ten iterations and every hundredth: a branch taken more seldom is not seen",
    )
