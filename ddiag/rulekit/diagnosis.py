"""The answer: a verdict in one sentence, the findings in the order to act on, and what could not be judged."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ddiag.model.run import Coverage
from ddiag.model.signals import Collectives, JobFacts, Signals, StepBudget
from ddiag.model.signals_incident import INCIDENT_FAMILIES, Settings
from ddiag.rulekit.cost import name_ranks
from ddiag.rulekit.finding import Abstention, Culprits, Finding, Severity
from ddiag.rulekit.merge import arrange
from ddiag.rulekit.rule import LoadedRule
from ddiag.rulekit.runner import run_rules
from ddiag.rulekit.wording import abstentions_for, findings_for

SCHEMA_VERSION = 1
PLAIN_WORD = re.compile(r"[a-z]+(-[a-z]+)*(?=[ ,;]|: |$)")
"""A first word that may take a capital; names of operators and options keep their spelling."""
FEWEST_STEPS = 2
"""Fewer steady steps show a problem, but not that there is none."""
LEAST_COMPUTE = 0.5
"""A step that computes for less than this share is not well, even when no rule can say why."""
MOST_UNSEEN = 0.15
"""Share of the step that may be waiting for ranks without evidence, from which nobody can call the job well."""
MOST_WAITING = 0.15
"""Share of the step spent waiting for other ranks, from which a job is not well although no rule says whom to blame."""
LEAST_KEPT = 0.8
"""Share of the records read that must have been usable for silence to prove anything."""
PART_WORDS = {
    "comm_wait_ms": "waiting for other ranks",
    "comm_transfer_ms": "exposed communication",
    "copy_ms": "exposed copies",
    "input_ms": "waiting for input",
    "sync_ms": "idling after blocking calls",
    "host_ms": "idling while the host launches or computes",
    "idle_ms": "unexplained idle",
}


class Status(str, Enum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    STALLED = "stalled"
    CRASHED = "crashed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Verdict:
    status: Status
    headline: str
    """One plain sentence: culprit, cost and confidence; or what was checked."""
    primary: str | None = None
    """Rule id of the finding to act on first."""


@dataclass(frozen=True)
class Diagnosis:
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    """Causes by urgency, each followed by its consequences."""
    abstentions: tuple[Abstention, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    rules_checked: tuple[str, ...] = ()
    """Ids of the rules that had the evidence they need and decided."""
    ddiag_version: str = ""
    rule_failures: tuple[str, ...] = ()
    """One line for each rule of a ``--rules`` folder that raised (also in the coverage notes)."""

    def worst(self) -> Severity | None:
        """The highest severity among the findings; None without any."""
        return min((f.severity for f in self.findings), key=lambda severity: severity.order, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract (``schema_version`` 1), made of plain types only."""
        return {
            "schema_version": SCHEMA_VERSION,
            "ddiag_version": self.ddiag_version,
            "verdict": {
                "status": self.verdict.status.value,
                "headline": self.verdict.headline,
                "primary": self.verdict.primary,
            },
            "findings": [finding_dict(finding) for finding in self.findings],
            "abstentions": [
                {"rule": a.rule, "title": a.title, "needs": list(a.needs), "capture": a.capture}
                for a in self.abstentions
            ],
            "rules_checked": list(self.rules_checked),
            "coverage": coverage_dict(self.coverage),
        }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """One finding of the JSON contract."""
    return {
        "rule": finding.rule,
        "root_cause": finding.root_cause,
        "title": finding.title,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "role": finding.role.value,
        "explained_by": finding.explained_by,
        "also_seen_by": list(finding.also_seen_by),
        "culprits": {
            "ranks": list(finding.culprits.ranks),
            "hosts": list(finding.culprits.hosts),
            "devices": list(finding.culprits.devices),
            "groups": list(finding.culprits.groups),
            "modules": list(finding.culprits.modules),
            "where": finding.culprits.where,
        },
        "victims": {"ranks": list(finding.victims)},
        "cost": {name: _rounded(value) for name, value in dataclasses.asdict(finding.cost).items()},
        "evidence": [
            {
                "label": item.label,
                "value": _rounded(item.value),
                "unit": item.unit,
                "limit": _rounded(item.limit),
                "source": item.source,
            }
            for item in finding.evidence
        ],
        "fix": list(finding.fix),
        "verify": finding.verify,
        "why": finding.why,
        "doubt": finding.doubt,
        "references": list(finding.references),
    }


def coverage_dict(coverage: Coverage) -> dict[str, Any]:
    """What was read and what was not, in the JSON contract."""
    cost = coverage.recording_cost
    return {
        "inputs": [dataclasses.asdict(item) for item in coverage.inputs],
        "ranks_seen": list(coverage.ranks_seen),
        "ranks_expected": list(coverage.ranks_expected),
        "ranks_missing": list(coverage.ranks_missing),
        "steps": list(coverage.steps),
        "dropped_records": coverage.dropped_records,
        "unreadable": [{"path": path, "reason": reason} for path, reason in coverage.unreadable],
        "notes": list(coverage.notes),
        "recording_cost": None if cost is None else {name: _rounded(value) for name, value in vars(cost).items()},
        "ending": coverage.ending,
    }


def _rounded(value: float | int | str | None) -> float | int | str | None:
    """Six significant digits: more is noise, and two machines may differ in it."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def conclude(signals: Signals, coverage: Coverage, rules: Sequence[LoadedRule], *, version: str = "") -> Diagnosis:
    """Run *rules* over *signals* and sum up."""
    outcome = run_rules(rules, signals)
    findings = findings_for(arrange(outcome.findings, rules), coverage)
    if outcome.failures:
        coverage = dataclasses.replace(coverage, notes=(*coverage.notes, *outcome.failures))
    return Diagnosis(
        verdict=_verdict(findings, signals, coverage, len(outcome.checked)),
        findings=findings,
        abstentions=abstentions_for(outcome.abstentions, signals, coverage),
        coverage=coverage,
        rules_checked=outcome.checked,
        ddiag_version=version,
        rule_failures=outcome.failures,
    )


def _verdict(findings: Sequence[Finding], signals: Signals, coverage: Coverage, checked: int) -> Verdict:
    serious = [f for f in findings if f.severity is not Severity.INFO]
    if serious:
        return Verdict(Status(findings[0].state.value), headline(findings[0]), findings[0].rule)
    reason = _too_damaged(coverage) or _too_little(signals, checked)
    if reason:
        return Verdict(Status.INCONCLUSIVE, f"Not enough evidence for a verdict: {reason}")
    return Verdict(Status.HEALTHY, _all_clear(signals, coverage, checked))


def headline(finding: Finding) -> str:
    """Culprit, cost and confidence in one sentence; nothing that the title already says is repeated."""
    who, title = culprit_words(finding.culprits), finding.title
    names = name_ranks(finding.culprits.ranks) if finding.culprits.ranks else who
    named = re.search(rf"\b{re.escape(names)}(?![\w.-])", title, re.IGNORECASE) if names else None
    if named and who.removeprefix(names) not in title:
        title = title[: named.end()] + who.removeprefix(names) + title[named.end() :]
    elif names and not named:
        title = f"{who}: {title}"
    if PLAIN_WORD.match(title):
        title = f"{title[:1].upper()}{title[1:]}"
    return f"{title}{_cost_words(finding)}; {finding.confidence.value} confidence."


def culprit_words(culprits: Culprits) -> str:
    """'rank 7 on node-a', 'group dp_0'; empty for the whole job."""
    if culprits.ranks:
        hosts = f" on {', '.join(culprits.hosts)}" if 0 < len(culprits.hosts) <= 2 else ""
        return name_ranks(culprits.ranks) + hosts
    for names, one, many in ((culprits.hosts, "host", "hosts"), (culprits.groups, "group", "groups")):
        if names:
            shown = ", ".join(names[:3]) + (f", … ({len(names)} in all)" if len(names) > 3 else "")
            return f"{one if len(names) == 1 else many} {shown}"
    return ""


def _cost_words(finding: Finding) -> str:
    ms, share, title = finding.cost.ms_per_step, finding.cost.step_share, finding.title
    if ms is None or any(f"{number} ms" in title for number in (f"{ms:.0f}", f"{ms:.1f}", f"{ms:.2f}", f"{ms:.3g}")):
        return ""
    part = "" if share is None or f"{share:.0%}" in title else f" ({share:.0%})"
    return f", costing {milliseconds(ms)} of each step{part}"


def milliseconds(value: float) -> str:
    """'34.2 ms', '1.25 s', '0.08 ms': three significant digits."""
    if abs(value) >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.0f} ms" if abs(value) >= 100 else f"{value:.3g} ms"


def _too_damaged(coverage: Coverage) -> str:
    """Too many records could not be understood: whatever they held is missing from every figure."""
    read = sum(item.events for item in coverage.inputs)
    if read <= 0 or coverage.dropped_records <= (1.0 - LEAST_KEPT) * read:
        return ""
    return (
        f"{coverage.dropped_records:,} of {read:,} records have no usable time or content, so no figure is "
        "complete; record it again or undo what changed the files"
    )


def _too_little(signals: Signals, checked: int) -> str:
    """Why silence of the rules proves nothing here; empty when it does."""
    budget = signals.get(StepBudget)
    if budget is None:
        return _nothing_measured(signals, checked)
    if checked == 0:
        return "no rule had the signals it needs"
    if budget.n_steps > 0 and budget.share("compute_ms") < LEAST_COMPUTE:
        largest = max(PART_WORDS, key=budget.share)
        return (
            f"only {budget.share('compute_ms'):.0%} of the step is compute and no rule can say why "
            f"({budget.share(largest):.0%} is {PART_WORDS[largest]})"
        )
    if budget.n_steps > 0 and budget.share("comm_wait_ms") >= MOST_WAITING:
        return (
            f"{budget.share('comm_wait_ms'):.0%} of the step is waiting for other ranks and no rule can say for which"
        )
    comm = signals.get(Collectives)
    unseen_ms = comm.unseen_ms if comm is not None else 0.0
    hidden_ms = unseen_ms + budget.mean("comm_wait_ms") if unseen_ms > 0 and budget.n_steps > 0 else unseen_ms
    if hidden_ms > 0 and budget.step_ms > 0 and hidden_ms >= MOST_UNSEEN * budget.step_ms:
        return (
            f"{min(hidden_ms / budget.step_ms, 1.0):.0%} of the step is exposed communication with ranks that left no "
            "evidence or do not show the same calls; only with all ranks of a group can waiting for one of them be "
            "told from a slow transfer"
        )
    alone = _seen_alone(signals)
    if alone:
        return alone
    if budget.n_steps < FEWEST_STEPS:
        if budget.source == "window":
            seen = "the trace marks no steps; profile 5 or more of them, calling prof.step() after each"
        else:
            seen = f"it covers {'no complete step' if budget.n_steps == 0 else 'one step'}; profile 5 or more steps"
        return f"nothing stands out, but {seen}"
    return ""


def _nothing_measured(signals: Signals, checked: int) -> str:
    told = signals.get(Settings)
    if told is not None and told.of("recorded"):
        return "no rank has ended a step in this recording: while the job runs, analyze it again when some have"
    if any(signals.has(family) for family in INCIDENT_FAMILIES):
        looked = "one rule looked" if checked == 1 else f"{checked} rules looked"
        return (
            f"{looked} at what the evidence says, and nothing in it is a known sign of trouble; give all ranks' logs, "
            "dmesg and Flight Recorder dumps, or record with ddiag run"
        )
    return "the evidence shows no work on a device or host that could be measured"


def _seen_alone(signals: Signals) -> str:
    """One rank of several cannot show that nobody waits for it: the late rank is the one that does not wait."""
    facts, comm = signals.get(JobFacts), signals.get(Collectives)
    if facts is None or comm is None or comm.matched_ranks > 1 or (facts.world_size or 1) < 2:
        return ""
    return (
        f"nothing stands out on {name_ranks(facts.ranks)} of {facts.world_size} ranks, but the one others wait for "
        "does not wait itself; profile all ranks over the same steps"
    )


def _all_clear(signals: Signals, coverage: Coverage, checked: int) -> str:
    budget, facts = signals.get(StepBudget), signals.get(JobFacts)
    seen = len(facts.ranks) if facts is not None else len(coverage.ranks_seen)
    expected = len(coverage.ranks_expected)
    ranks = f"{seen} of {expected} ranks" if expected > seen else f"{seen} rank{'s' if seen != 1 else ''}"
    if budget is None:
        return f"No problem found by {checked} rules over {ranks}."
    return (
        f"No problem found: {checked} rules checked {ranks} over {budget.n_steps} steps of "
        f"{milliseconds(budget.step_ms)}, {budget.share('compute_ms'):.0%} of it compute."
    )
