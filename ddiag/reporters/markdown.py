"""The diagnosis as Markdown, for pasting into an issue or an incident channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals import Signals, StepBudget
from ddiag.plots.numbers import percent, span
from ddiag.plots.palette import PARTS
from ddiag.reporters.markdown_text import escaped as _text
from ddiag.reporters.step_bars import worst_ranks
from ddiag.reporters.words import (
    SEVERITY_SHAPES,
    abstention_lines,
    cost_words,
    coverage_lines,
    evidence_limit,
    evidence_value,
    job_line,
)
from ddiag.rulekit.diagnosis import Diagnosis
from ddiag.rulekit.finding import Finding, Role


@dataclass(frozen=True)
class MarkdownReporter:
    """GitHub-flavoured Markdown."""

    most_findings: int = 20

    def render(self, diagnosis: Diagnosis, signals: Signals, run: Run | None = None) -> str:
        """Everything that an engineer who was not there needs to act."""
        verdict = diagnosis.verdict
        lines = [
            f"## ddiag: {verdict.status.value}",
            "",
            f"**{_text(verdict.headline)}**",
            "",
            _text(job_line(signals, diagnosis.coverage)),
            *self._findings(diagnosis.findings),
            *_budget(signals.get(StepBudget), diagnosis.findings),
            *_list("Gaps in the evidence", coverage_lines(diagnosis.coverage)),
            *_list("Not judged", abstention_lines(diagnosis.abstentions)),
            "",
            f"<sub>ddiag {_text(diagnosis.ddiag_version)}, {len(diagnosis.rules_checked)} rules checked</sub>",
        ]
        return "\n".join(lines) + "\n"

    def _findings(self, findings: Sequence[Finding]) -> Iterator[str]:
        for finding in findings[: self.most_findings]:
            yield from _finding(finding)
        if len(findings) > self.most_findings:
            yield from ("", f"… {len(findings) - self.most_findings} more of {len(findings)} findings.")


def _finding(finding: Finding) -> Iterator[str]:
    shape = SEVERITY_SHAPES[finding.severity]
    yield from ("", f"### {shape} {finding.rule} {_text(finding.title)}", "")
    facts = [finding.severity.value, f"{finding.confidence.value} confidence", cost_words(finding.cost)]
    if finding.role is Role.CONSEQUENCE:
        facts.append(f"a consequence of {finding.explained_by}")
    if finding.also_seen_by:
        facts.append(f"also seen by {', '.join(finding.also_seen_by)}")
    yield _text(" · ".join(fact for fact in facts if fact))
    yield from ("", "| evidence | value | limit | from |", "|---|--:|--:|---|")
    for item in finding.evidence:
        cells = (item.label, evidence_value(item), evidence_limit(item), item.source)
        yield f"| {' | '.join(_text(cell) for cell in cells)} |"
    yield ""
    yield from (f"{index}. {_text(step)}" for index, step in enumerate(finding.fix, start=1))
    yield from ("", f"Verify: {_text(finding.verify)}")


def _budget(budget: StepBudget | None, findings: Sequence[Finding]) -> Iterator[str]:
    if budget is None or budget.table.filter(pl.col("steady")).is_empty():
        return
    bars = worst_ranks(budget, findings[0].culprits.ranks if findings else ())
    columns = [c for c in PARTS if any(parts[c] >= 0.005 * sum(parts.values()) for parts in bars.parts)]
    yield from ("", f"### Where the step goes ({_text(bars.caption)})", "")
    yield f"| rank | step | {' | '.join(PARTS[c].label for c in columns)} |"
    yield f"|--:|--:|{'--:|' * len(columns)}"
    for rank, parts in zip(bars.ranks, bars.parts, strict=True):
        total = sum(parts.values())
        shares = (percent(parts[c] / total) if total else "" for c in columns)
        yield f"| {rank} | {span(total)} | {' | '.join(shares)} |"


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield from ("", f"### {title}", "")
        yield from (f"- {_text(item)}" for item in items)
