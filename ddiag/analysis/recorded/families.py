"""Signals of a recorded run, and how those of profiler windows taken meanwhile complete them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ddiag.analysis.budget import step_budget
from ddiag.analysis.chosen_steps import only
from ddiag.analysis.collectives import match
from ddiag.analysis.facts import job_facts
from ddiag.analysis.grad_buckets import grad_buckets
from ddiag.analysis.input_wait import input_wait
from ddiag.analysis.late_ranks import late_ranks
from ddiag.analysis.links import links
from ddiag.analysis.recorded.activity import recorded_activity
from ddiag.analysis.recorded.allocator import allocator_retries
from ddiag.analysis.recorded.blocked import blocked
from ddiag.analysis.recorded.device_health import device_health
from ddiag.analysis.recorded.exits import exits
from ddiag.analysis.recorded.host_link import host_link
from ddiag.analysis.recorded.host_load import host_load
from ddiag.analysis.recorded.host_memory import host_memory
from ddiag.analysis.recorded.loader_workers import loader_workers
from ddiag.analysis.recorded.memory import recorded_memory
from ddiag.analysis.recorded.optimizer import recorded_copies, recorded_optimizer
from ddiag.analysis.recorded.overhead import recorded_overhead
from ddiag.analysis.recorded.pinned import pinned_memory
from ddiag.analysis.recorded.queueing import served
from ddiag.analysis.recorded.steps import recorded_windows
from ddiag.analysis.recorded.unmarked import unmarked_time
from ddiag.analysis.recorded.unused import unused_search
from ddiag.analysis.shard_units import shard_units
from ddiag.model.run import Run
from ddiag.model.signals import JobFacts, Memory, OptimizerStep, PythonOverhead, StepBudget

Families = Mapping[type, object]
_WHOLE_RUN = (JobFacts, Memory, PythonOverhead)
"""What a recording knows better than any trace: it covers the whole run."""


def recorded_families(run: Run, steps: tuple[int, int] | None) -> Families:
    """Families by type, those of the recording alone."""
    run = replace(run, tables={name: table for name, table in run.tables.items() if name not in _of_traces(run)})
    if run.has("collectives"):
        run = replace(run, tables={**run.tables, "collectives": served(run)})
    facts = job_facts(run)
    windows = recorded_windows(run)
    if steps is not None:
        windows = only(windows, *steps)
    acts = recorded_activity(run)
    calls = match(run, windows, acts)
    if calls is not None:
        calls = replace(calls, stood_still=blocked(run, windows, calls))
    found = (
        facts,
        step_budget(run, windows, acts, calls),
        input_wait(run, windows, acts),
        calls,
        late_ranks(run, windows, acts, calls),
        grad_buckets(run, windows, acts, calls),
        shard_units(run, windows, acts, calls),
        recorded_copies(run, windows),
        recorded_optimizer(run, windows),
        recorded_memory(run),
        links(run, facts, calls),
        recorded_overhead(run, windows),
        host_load(run, windows),
        exits(run),
        device_health(run, windows),
        pinned_memory(run),
        allocator_retries(run),
        host_memory(run),
        host_link(run, windows),
        unused_search(run),
        unmarked_time(run, windows),
        loader_workers(run, windows),
    )
    return {type(family): family for family in found if family is not None}


def _of_traces(run: Run) -> set[str]:
    """Tables that came from profiler windows."""
    if run.traces is None:
        return set()
    return {name for name, table in run.tables.items() if table is run.traces.tables.get(name)}


def completed(recorded: Families, traced: Families) -> Families:
    """Both together. Where a trace shows the device, it leads: the recorder sees a device only through its host.

    Otherwise the recording leads, since it covers far more steps and did not slow the job down.
    """
    budget = traced.get(StepBudget)
    device_shown = isinstance(budget, StepBudget) and budget.on_device
    merged = {**recorded, **traced} if device_shown else {**traced, **recorded}
    merged |= {family: recorded[family] for family in _WHOLE_RUN if family in recorded}
    merged = {family: found for family, found in merged.items() if found is not None}
    update, mine = merged.get(OptimizerStep), recorded.get(OptimizerStep)
    seen = traced.get(OptimizerStep)
    if isinstance(update, OptimizerStep) and isinstance(mine, OptimizerStep) and isinstance(seen, OptimizerStep):
        lead = seen if device_shown else mine
        merged[OptimizerStep] = replace(
            lead,
            name=seen.name,
            implementation=seen.implementation,
            skipped_steps=lead.skipped_steps,
            clipped_scaled_steps=mine.clipped_scaled_steps,
        )
    return merged
