"""The order in which signal families are derived from the facts."""

from __future__ import annotations

from types import MappingProxyType

from ddiag.analysis.activity import activity
from ddiag.analysis.attention import attention
from ddiag.analysis.budget import step_budget
from ddiag.analysis.chosen_steps import only
from ddiag.analysis.collectives import match
from ddiag.analysis.copies import copies
from ddiag.analysis.facts import job_facts
from ddiag.analysis.grad_buckets import grad_buckets
from ddiag.analysis.host_launch import host_launch
from ddiag.analysis.incident.families import incident_families, incident_job
from ddiag.analysis.input_wait import input_wait
from ddiag.analysis.kernel_mix import kernel_mix
from ddiag.analysis.late_ranks import late_ranks
from ddiag.analysis.links import links
from ddiag.analysis.memory import allocator_calls, memory
from ddiag.analysis.optimizer_step import optimizer_step
from ddiag.analysis.precision import precision
from ddiag.analysis.python_overhead import python_overhead
from ddiag.analysis.recompute import recompute
from ddiag.analysis.recorded.families import completed, recorded_families
from ddiag.analysis.shard_units import shard_units
from ddiag.analysis.steps import find_steps
from ddiag.analysis.sync_points import sync_points
from ddiag.errors import UsageError
from ddiag.model.run import Run
from ddiag.model.signals import FAMILIES, JobFacts, Signals


def derive(run: Run, *, steps: tuple[int, int] | None = None) -> Signals:
    """All signal families that the facts of *run* can give.

    *steps* (first, last, both included) makes exactly these steps the steady ones; UsageError when none was recorded.
    """
    found = _measured_families(run, steps) | incident_families(run)
    return Signals(MappingProxyType({family: found[family] for family in FAMILIES if family in found}))


def _measured_families(run: Run, steps: tuple[int, int] | None) -> dict[type, object]:
    """What a recording or traces show; an incident known from logs alone has its ranks only."""
    if run.recorded:
        found = recorded_families(run, steps)
        return dict(found if run.traces is None else completed(found, _traced_families(run.traces, None)))
    if not run.has("captures"):
        if steps is not None:
            raise UsageError("--steps: the evidence has no steps")
        return {JobFacts: incident_job(run)}
    return _traced_families(run, steps)


def _traced_families(run: Run, steps: tuple[int, int] | None) -> dict[type, object]:
    facts = job_facts(run)
    windows = find_steps(run) if steps is None else only(find_steps(run), *steps)
    acts = activity(run)
    calls = match(run, windows, acts)
    budget = step_budget(run, windows, acts, calls)
    used = memory(run, windows)
    families = (
        facts,
        budget,
        input_wait(run, windows, acts),
        host_launch(run, windows, acts),
        sync_points(run, windows, acts),
        calls,
        late_ranks(run, windows, acts, calls),
        grad_buckets(run, windows, acts, calls),
        shard_units(run, windows, acts, calls),
        copies(run, windows, acts),
        kernel_mix(run, windows),
        precision(run, windows, facts),
        attention(run, windows, budget),
        optimizer_step(run, windows, acts),
        recompute(run, windows, acts, used),
        used,
        allocator_calls(run, windows),
        links(run, facts, calls),
        python_overhead(run, windows, acts),
    )
    return {type(family): family for family in families if family is not None}
