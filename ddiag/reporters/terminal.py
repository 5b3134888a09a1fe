"""The diagnosis on one screen: verdict, what to do first, what else there is, and where the step goes."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddiag.model.run import Run
from ddiag.model.signals import Signals, StepBudget
from ddiag.model.signals_incident import Story
from ddiag.plots.numbers import percent, span
from ddiag.reporters import step_bars
from ddiag.reporters.glyphs import ASCII, UNICODE, Glyphs
from ddiag.reporters.story import story_rows
from ddiag.reporters.words import (
    clean,
    cost_words,
    coverage_lines,
    evidence_limit,
    evidence_value,
    job_line,
    missing_families,
    number,
)
from ddiag.rulekit.diagnosis import Diagnosis, Status
from ddiag.rulekit.finding import Abstention, Evidence, Finding, Role, Severity

TWO_COLUMNS_FROM = 150
"""Terminal width from which the step budget stands beside the findings."""
PROSE_WIDTH = 110
MOST_EVIDENCE, MOST_FIXES, MOST_OTHERS, MOST_COVERAGE = 6, 3, 8, 5
STYLES = {
    Severity.CRITICAL: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.INFO: "bold cyan",
    Status.HEALTHY: "bold green",
    Status.DEGRADED: "bold yellow",
    Status.STALLED: "bold red",
    Status.CRASHED: "bold red",
    Status.INCONCLUSIVE: "bold cyan",
}
_PLAIN = str.maketrans({"·": "-", "–": "-", "—": "-", "…": "...", "µ": "u", "×": "x", "’": "'"})
_TRAILING = re.compile(r"(?:\x1b\[[0-9;]*m| )+$")
ColorSystem = Literal["standard", "256", "truecolor"]
T = TypeVar("T")


@dataclass(frozen=True)
class TerminalReporter:
    """Text for a terminal of *width* columns."""

    width: int = 80
    color_system: ColorSystem | None = None
    """None: no colour and no escape codes at all."""
    ascii_only: bool = False
    """The terminal's encoding lacks block characters."""
    written: tuple[str, ...] = ()
    """Paths of the reports written beside this one."""
    glyphs: Glyphs = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "glyphs", ASCII if self.ascii_only else UNICODE)

    def render(self, diagnosis: Diagnosis, signals: Signals, run: Run | None = None) -> str:
        """The screen, ending in a newline."""
        console = Console(
            file=io.StringIO(),
            width=self.width,
            force_terminal=self.color_system is not None,
            color_system=self.color_system,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},
        )
        console.print(self._page(diagnosis, signals))
        text = console.file.getvalue()  # type: ignore[attr-defined] # it is the StringIO from above
        text = "\n".join(_without_trailing_blanks(line) for line in text.splitlines()) + "\n"
        return text.translate(_PLAIN).encode("ascii", errors="replace").decode() if self.ascii_only else text

    def _page(self, diagnosis: Diagnosis, signals: Signals) -> RenderableType:
        wide = self.width >= TWO_COLUMNS_FROM
        left_width = min(PROSE_WIDTH, self.width - 60) if wide else min(self.width, PROSE_WIDTH)
        bars_width = self.width - left_width - 4 if wide else left_width
        findings = [*self._findings(diagnosis.findings, left_width), *self._story(signals)]
        bars = self._bars(signals, diagnosis.findings, bars_width)
        head, foot = self._head(diagnosis, signals), self._foot(diagnosis)
        if not wide or not bars or not findings:
            return Padding(Group(*head, *findings, *bars, *foot), (0, max(self.width - left_width, 0), 0, 0))
        body = Table.grid(padding=(0, 4, 0, 0))
        body.add_column(width=left_width)
        body.add_column(width=bars_width)
        body.add_row(Group(*findings), Group(*bars))
        return Group(*head, body, *foot)

    def _head(self, diagnosis: Diagnosis, signals: Signals) -> list[RenderableType]:
        verdict = diagnosis.verdict
        severity = diagnosis.worst() if verdict.status is Status.DEGRADED else None
        style = STYLES[severity or verdict.status]
        shape = self.glyphs.severity[severity] if severity else self.glyphs.status[verdict.status]
        sentence = Text()
        sentence.append(f"{shape} {verdict.status.value.upper()}  ", style)
        sentence.append(clean(verdict.headline), "bold")
        return [sentence, Text(clean(job_line(signals, diagnosis.coverage)), "dim")]

    def _findings(self, findings: tuple[Finding, ...], width: int) -> list[RenderableType]:
        if not findings:
            return []
        parts: list[RenderableType] = []
        others = findings
        if findings[0].severity is not Severity.INFO:
            parts += self._first(findings[0])
            others = findings[1:]
        if others:
            parts += [Text(), self._title("Also found" if parts else "Worth knowing"), self._others(others, width)]
        return parts

    def _first(self, finding: Finding) -> list[RenderableType]:
        """The finding of the headline: what shows it, what to do, how to see that it helped."""
        line = self._tag(finding)
        line.append(f"  {self._cost_line(finding)}")
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(overflow="fold")
        rows.add_row("Evidence", self._evidence(finding.evidence))
        rows.add_row("Fix", self._fixes(finding.fix))
        rows.add_row("Verify", Text(clean(finding.verify)))
        return [Text(), self._title("Do this first"), line, rows]

    def _cost_line(self, finding: Finding) -> str:
        sep = self.glyphs.separator
        words = [finding.severity.value, f"{finding.confidence.value} confidence"]
        cost = cost_words(finding.cost)
        return sep.join((*words, cost.replace(" · ", sep)) if cost else words)

    def _tag(self, finding: Finding) -> Text:
        style = STYLES[finding.severity]
        return Text.assemble((self.glyphs.severity[finding.severity], style), " ", (finding.rule, style))

    def _evidence(self, evidence: tuple[Evidence, ...]) -> RenderableType:
        shown = _few_or_all(evidence, MOST_EVIDENCE)
        words = any(isinstance(item.value, str) for item in shown)
        limits = [evidence_limit(item) for item in shown]
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(overflow="fold")
        table.add_column(justify="left" if words else "right", overflow="fold")
        if any(limits):  # an empty column would take room from the others
            table.add_column(style="dim", overflow="fold")
        for item, limit in zip(shown, limits, strict=True):
            row = [Text(clean(item.label)), Text(evidence_value(item)), Text(f"limit {limit}" if limit else "")]
            table.add_row(*(row if any(limits) else row[:2]))
        if len(evidence) == len(shown):
            return table
        return Group(table, Text(self._more(len(evidence) - len(shown), len(evidence)), "dim"))

    def _fixes(self, fixes: tuple[str, ...]) -> RenderableType:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        shown = _few_or_all(fixes, MOST_FIXES)
        for index, fix in enumerate(shown, start=1):
            table.add_row(f"{index}.", Text(clean(fix)))
        if len(fixes) > len(shown):
            table.add_row("", Text(self._more(len(fixes) - len(shown), len(fixes)), "dim"))
        return table

    def _others(self, findings: tuple[Finding, ...], width: int) -> RenderableType:
        """One line each; what a finding explains is indented beneath it."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="ellipsis", no_wrap=width >= TWO_COLUMNS_FROM)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for finding in findings[:MOST_OTHERS]:
            consequence = finding.role is Role.CONSEQUENCE
            tag = Text(f"{self.glyphs.branch} " if consequence else "", "dim").append_text(self._tag(finding))
            title = Text(clean(finding.title))
            if consequence:
                title.append(f" (due to {finding.explained_by})", "dim")
            ms, share = finding.cost.ms_per_step, finding.cost.step_share
            table.add_row(tag, title, "" if ms is None else span(ms), "" if share is None else percent(share))
        if len(findings) > MOST_OTHERS:
            table.add_row("", Text(self._more(len(findings) - MOST_OTHERS, len(findings)), "dim"))
        return table

    def _story(self, signals: Signals) -> list[RenderableType]:
        """What happened, in order, where logs tell it."""
        story = signals.get(Story)
        if story is None or len(story.lines) < 2:
            return []
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for row in story_rows(story):
            table.add_row(row.when, row.who, row.what)
        if story.left_out:
            table.add_row("", "", Text(self._more(story.left_out, story.left_out + len(story.lines)), "dim"))
        return [Text(), self._title("What happened"), table]

    def _bars(self, signals: Signals, findings: tuple[Finding, ...], width: int) -> list[RenderableType]:
        budget = signals.get(StepBudget)
        if budget is None or not budget.table.height:
            return []
        culprits = findings[0].culprits.ranks if findings else ()
        bars = step_bars.worst_ranks(budget, culprits)
        title = self._title("Where the step goes")
        title.append(f"  {clean(bars.caption)}", "not bold dim")
        return [Text(), title, *bars.drawn(width, self.glyphs)]

    def _foot(self, diagnosis: Diagnosis) -> list[RenderableType]:
        parts: list[RenderableType] = []
        notes = coverage_lines(diagnosis.coverage)
        if notes:
            parts += [Text(), self._title("Gaps in the evidence"), self._gaps(notes)]
        closing = [self._could_not(diagnosis.abstentions), *(f"Report: {path}" for path in self.written)]
        return [*parts, Text(), *(Text(clean(line), "dim") for line in closing if line)]

    def _gaps(self, notes: list[str]) -> RenderableType:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        shown = _few_or_all(notes, MOST_COVERAGE)
        for note in shown:
            table.add_row("-", Text(note))
        if len(notes) > len(shown):
            table.add_row("", Text(self._more(len(notes) - len(shown), len(notes)), "dim"))
        return table

    def _could_not(self, abstentions: tuple[Abstention, ...]) -> str:
        if not abstentions:
            return ""
        missing = missing_families(abstentions)
        listed = ", ".join(missing[:6]) + (f", {self.glyphs.ellipsis}" if len(missing) > 6 else "")
        rules = "1 rule" if len(abstentions) == 1 else f"{len(abstentions)} rules"
        return f"{rules} could not judge{f' (missing: {listed})' if missing else ''}; the report says what to record."

    def _title(self, words: str) -> Text:
        return Text(words.upper(), "bold")

    def _more(self, hidden: int, total: int) -> str:
        return f"{self.glyphs.ellipsis} {number(hidden)} more of {number(total)}"


def _few_or_all(items: Sequence[T], most: int) -> Sequence[T]:
    """The first *most*, or all where the line that says how many are left out would be the only one saved."""
    return items if len(items) <= most + 1 else items[:most]


def _without_trailing_blanks(line: str) -> str:
    """*line* without blanks at its end, also between the codes that end its styles."""
    return _TRAILING.sub(lambda end: end[0].replace(" ", ""), line)
