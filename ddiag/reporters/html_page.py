"""The page as data: everything the template shows, in reading order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals import JobFacts, Signals, StepBudget
from ddiag.plots import communication, heat_map, kernels, memory, step_time
from ddiag.plots.chart import Chart
from ddiag.plots.numbers import span
from ddiag.plots.palette import PARTS, Activity
from ddiag.plots.table import DataTable
from ddiag.plots.timeline import Timeline, timeline
from ddiag.reporters import html_tables as tables
from ddiag.reporters.hang_grid import Grid, groups_grid
from ddiag.reporters.hang_view import HangView, hang_view, who_waits
from ddiag.reporters.html_findings import Card, make_cards
from ddiag.reporters.html_method import Definition, definitions
from ddiag.reporters.story import story_table
from ddiag.reporters.words import job_line
from ddiag.rulekit.diagnosis import Diagnosis, Status
from ddiag.rulekit.finding import Abstention

FAMILIES: tuple[tuple[str, str], ...] = (
    ("DD10", "Offload"),
    ("DD11", "Numerics"),
    ("DD1", "Input"),
    ("DD2", "Host and launch"),
    ("DD3", "Compute"),
    ("DD4", "Communication"),
    ("DD5", "Skew and stragglers"),
    ("DD6", "Memory"),
    ("DD7", "Devices and links"),
    ("DD8", "Configuration"),
    ("DD9", "Hangs and crashes"),
)


@dataclass(frozen=True)
class Part:
    activity: Activity
    ms: float
    share: float


@dataclass(frozen=True)
class Section:
    """One section of evidence: charts, then tables."""

    id: str
    title: str
    charts: tuple[Chart, ...] = ()
    tables: tuple[DataTable, ...] = ()
    timeline: Timeline | None = None
    lead: str = ""
    hang: HangView | None = None
    grid: Grid | None = None

    @property
    def empty(self) -> bool:
        return not self.charts and not self.tables and self.timeline is None and self.hang is None


@dataclass(frozen=True)
class Page:
    diagnosis: Diagnosis
    status: str
    job: str
    step_words: str
    parts: tuple[Part, ...]
    cards: tuple[Card, ...]
    """Causes; each holds its consequences."""
    sections: tuple[Section, ...]
    abstentions: tuple[Abstention, ...]
    checked: tuple[tuple[str, tuple[str, ...]], ...]
    """(family in words, rule ids)."""
    coverage: tuple[DataTable, ...]
    method: tuple[Definition, ...]
    ranks_of_host: Mapping[str, tuple[int, ...]]

    @property
    def tone(self) -> str:
        """Shape and colour of the verdict: the status, or how bad it is where something is degraded."""
        worst = self.diagnosis.worst()
        return worst.value if worst is not None and self.status == Status.DEGRADED.value else self.status

    @property
    def healthy(self) -> bool:
        return self.diagnosis.verdict.status is Status.HEALTHY

    @property
    def acts(self) -> bool:
        """There is something to do; without it (notes at most) the page says what was checked instead."""
        return bool(self.cards) and self.diagnosis.verdict.primary is not None

    @property
    def inconclusive(self) -> bool:
        """What is missing is then the thing to act on, so it comes first."""
        return self.diagnosis.verdict.status is Status.INCONCLUSIVE

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(chart for section in self.sections for chart in section.charts)

    @property
    def timeline(self) -> Timeline | None:
        return next((s.timeline for s in self.sections if s.timeline is not None), None)

    @property
    def contents(self) -> tuple[tuple[str, str], ...]:
        """(anchor, words) of the contents list."""
        missing = [("not-measured", "Not measured")] if self.abstentions else []
        entries = [("verdict", "Verdict"), *(missing if self.inconclusive else ())]
        if self.acts:
            entries.append(("first", "Do this first"))
        if not self.acts:
            entries.append(("checked", "What was checked"))
        if self.cards:
            entries.append(("findings", "Findings"))
        entries += [(section.id, section.title) for section in self.sections]
        return (*entries, *(() if self.inconclusive else missing), ("coverage", "Coverage and method"))


def build_page(diagnosis: Diagnosis, signals: Signals, run: Run) -> Page:
    """Everything the template needs; a section without content is left out."""
    facts = signals.get(JobFacts)
    culprits = _culprit_ranks(diagnosis, facts)
    primary = diagnosis.findings[0].culprits.ranks if diagnosis.findings else ()
    sections = _sections(signals, run, culprits, primary)
    step_words, parts = _budget(signals)
    return Page(
        diagnosis=diagnosis,
        status=diagnosis.verdict.status.value,
        job=job_line(signals, diagnosis.coverage),
        step_words=step_words,
        parts=parts,
        cards=make_cards(diagnosis.findings),
        sections=tuple(section for section in sections if not section.empty),
        abstentions=diagnosis.abstentions,
        checked=_families(diagnosis.rules_checked),
        coverage=tables.coverage_tables(diagnosis.coverage),
        method=definitions(diagnosis, signals),
        ranks_of_host=_hosts(facts),
    )


def _sections(signals: Signals, run: Run, culprits: Sequence[int], primary: Sequence[int]) -> list[Section]:
    return [
        _hang(signals, run),
        Section("story", "What happened", (), _present(story_table(signals))),
        Section(
            "step-time",
            "Where the time goes",
            _present(
                step_time.waterfall(signals), step_time.rank_bars(signals, culprits), step_time.step_bars(signals)
            ),
        ),
        Section("ranks-steps", "Ranks × steps", _present(heat_map.heat_map(signals))),
        Section("timeline", "Timeline of the worst step", timeline=timeline(signals, run, culprits, outlined=primary)),
        Section(
            "communication",
            "Communication",
            _present(communication.bandwidth_chart(signals), communication.bucket_chart(signals)),
            _present(tables.collectives(signals), tables.late_ranks(signals), tables.shard_units(signals)),
        ),
        Section("memory", "Memory", _present(memory.memory_timeline(signals, culprits)), tables.memory(signals)),
        Section(
            "kernels",
            f"{kernels.unit_of_work(signals)}s",
            _present(kernels.kernel_classes(signals)),
            _present(tables.top_kernels(signals), tables.precision(signals)),
        ),
        Section(
            "input-host",
            "Input and host",
            (),
            _present(tables.input_wait(signals), tables.sync_points(signals), tables.long_gaps(signals)),
        ),
        Section(
            "links", "Devices and links", (), _present(tables.copies(signals), tables.links(signals))
        ),
    ]  # fmt: skip


def _hang(signals: Signals, run: Run) -> Section:
    view = hang_view(signals, run)
    if view is None:
        return Section("hang", "")
    waits = who_waits(view)
    return Section(
        "hang", "Who waits for whom", (), (waits,), hang=view, grid=groups_grid(view.stall, run, view.places)
    )


def _present(*things: Chart | DataTable | None) -> tuple:  # type: ignore[type-arg]
    return tuple(thing for thing in things if thing is not None)


def _culprit_ranks(diagnosis: Diagnosis, facts: JobFacts | None) -> tuple[int, ...]:
    """Ranks named in findings, most urgent first; a host stands for its ranks."""
    hosts = _hosts(facts)
    ranks: dict[int, None] = {}
    for finding in diagnosis.findings:
        ranks |= dict.fromkeys(finding.culprits.ranks)
        for host in finding.culprits.hosts if not finding.culprits.ranks else ():
            ranks |= dict.fromkeys(hosts.get(host, ()))
    return tuple(ranks)


def _hosts(facts: JobFacts | None) -> dict[str, tuple[int, ...]]:
    hosts: dict[str, list[int]] = {}
    for rank, host in facts.host_of.items() if facts is not None else ():
        hosts.setdefault(host, []).append(rank)
    return {host: tuple(ranks) for host, ranks in hosts.items()}


def _budget(signals: Signals) -> tuple[str, tuple[Part, ...]]:
    """The mean step and its parts, for the bar beneath the verdict."""
    budget = signals.get(StepBudget)
    if budget is None or budget.table.is_empty():
        return "", ()
    rows = step_time.steady_rows(budget)
    means = rows.select([pl.col(name).mean() for name in [*PARTS, "step_ms"]]).row(0, named=True)
    step = float(means["step_ms"])
    amounts = [(activity, float(means[name])) for name, activity in PARTS.items()]
    if step <= 0:
        return "", ()
    return span(step), tuple(Part(a, ms, ms / step) for a, ms in amounts if ms >= step * 5e-4)


def _families(rules: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    grouped: dict[str, list[str]] = {}
    for rule in rules:
        number = rule.removeprefix("DD")
        # DD1001 is family 10, DD101 family 1: the last two digits number the rule.
        prefix = f"DD{number[:-2]}"
        grouped.setdefault(prefix, []).append(rule)
    words = dict(FAMILIES)
    order = sorted(grouped, key=lambda prefix: (not prefix[2:].isdigit(), prefix[2:].zfill(4)))
    return tuple((words.get(prefix, prefix), tuple(grouped[prefix])) for prefix in order)
