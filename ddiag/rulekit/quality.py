"""How far a figure can be trusted, in one place: rules that judge the same evidence are equally sure of it."""

from __future__ import annotations

from ddiag.model.signals import JobFacts, StepBudget
from ddiag.rulekit.cost import severity_for
from ddiag.rulekit.finding import Abstain, Confidence, Severity

ENOUGH_STEPS = 3
"""Steady steps from which a repeated figure is more than an accident."""
MARKED = ("annotation", "recorded")
"""Sources of steps that say exactly where each begins."""


def confidence_for(
    budget: StepBudget, facts: JobFacts, *, host_timed: bool = False, at_most: Confidence = Confidence.HIGH
) -> Confidence:
    """High for three or more marked steps, medium for fewer or inferred ones, low for a capture without steps.

    *host_timed*: the figure is time on the host, which recorded Python stacks inflate: one level lower with them.
    *at_most*: for figures that are estimates however long the measurement.
    """
    level = 0 if budget.n_steps >= ENOUGH_STEPS and budget.source in MARKED else 1
    if budget.source == "window":
        level = 2
    if host_timed and facts.with_stack:
        level += 1
    levels = list(Confidence)
    return levels[min(max(level, levels.index(at_most)), 2)]


def severity_over_steps(share: float, budget: StepBudget, *, warning: float, critical: float) -> Severity:
    """:func:`severity_for`, but one step alone, which may be an odd one, is never critical."""
    severity = severity_for(share, warning=warning, critical=critical)
    return Severity.WARNING if severity is Severity.CRITICAL and budget.n_steps < 2 else severity


def host_time_unknown(budget: StepBudget, facts: JobFacts) -> Abstain | None:
    """What a rule about host time says of a single step with Python stacks: recording them is most of what it shows."""
    if budget.n_steps >= 2 or not facts.with_stack:
        return None
    return Abstain(
        "one step with Python stacks recorded does not tell the host's own pace from the profiler's",
        "profile 5+ marked steps with torch.profiler and with_stack=False",
    )


def over_steps(budget: StepBudget) -> str:
    """Over what a mean was taken, for an evidence's source."""
    if budget.source == "window":
        return "whole capture as one step"
    return f"mean over {budget.n_steps} steady step{'' if budget.n_steps == 1 else 's'}"


def doubts(facts: JobFacts, *others: str) -> str:
    """*others*, and what recorded stacks do to host time where they were recorded."""
    stacks = (
        "Python stacks were recorded, which slows the host: measure again with with_stack=False before acting"
        if facts.with_stack
        else ""
    )
    return "; ".join(text for text in (*others, stacks) if text)
