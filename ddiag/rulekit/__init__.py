"""The kit rules are written with: one import line gives a rule file everything it needs."""

from __future__ import annotations

from ddiag.rulekit.cost import human_bytes, name_ranks, severity_for, step_cost
from ddiag.rulekit.finding import (
    Abstain,
    Abstention,
    Confidence,
    Cost,
    Culprits,
    Evidence,
    Finding,
    Role,
    Severity,
    State,
)
from ddiag.rulekit.rule import HEADINGS, LoadedRule, Rule, View

__all__ = [
    "HEADINGS",
    "Abstain",
    "Abstention",
    "Confidence",
    "Cost",
    "Culprits",
    "Evidence",
    "Finding",
    "LoadedRule",
    "Role",
    "Rule",
    "Severity",
    "State",
    "View",
    "human_bytes",
    "name_ranks",
    "severity_for",
    "step_cost",
]
