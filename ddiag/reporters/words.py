"""How all reporters word and mark things, so that terminal, Markdown and HTML say the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ddiag.model.run import Coverage, RecordingCost
from ddiag.model.signals import FAMILIES, JobFacts, Signals, StepBudget
from ddiag.plots.numbers import percent, short, size, span
from ddiag.rulekit.cost import name_ranks
from ddiag.rulekit.diagnosis import Status
from ddiag.rulekit.finding import Abstention, Cost, Evidence, Severity
from ddiag.rulekit.runner import family_words

SEVERITY_SHAPES: Mapping[Severity, str] = MappingProxyType(
    {Severity.CRITICAL: "■", Severity.WARNING: "▲", Severity.INFO: "●"}
)
STATUS_SHAPES: Mapping[Status, str] = MappingProxyType(
    {
        Status.HEALTHY: "✔",
        Status.DEGRADED: "▲",
        Status.STALLED: "■",
        Status.CRASHED: "■",
        Status.INCONCLUSIVE: "?",
    }
)
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "annotation": "marked in the trace",
        "recorded": "recorded",
        "inferred": "inferred",
        "window": "the whole capture as one step",
    }
)
PROMISED_SHARE = 0.01
"""Of a step, what recording takes at most where steps are not very short."""
SIZES: Mapping[str, str] = MappingProxyType({"bytes": "", "bytes/step": "per step", "bytes per step": "per step"})
"""Units of amounts that are shown with a binary prefix, and what is left of the unit then."""
MOST_FILES_EACH = 3
"""Files with the same note that are listed one by one."""
_FAMILY_WORDS = frozenset(family_words(family) for family in FAMILIES)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+")


def clean(text: object) -> str:
    """Text from evidence without control characters: it must not steer a terminal or break a line."""
    return _CONTROL.sub(" ", str(text))


def number(value: float | int | str | None, unit: str = "") -> str:
    """A value of an evidence row: binary sizes, shares in percent, three significant digits, counts in full."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return clean(value)
    if unit in SIZES:
        return size(value)
    if _is_share(value, unit):
        return percent(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2g}" if 0 < abs(value) < 0.001 else short(value)


def evidence_value(item: Evidence) -> str:
    """'34.1 ms/step', '25.0 MiB', '12 % of communication'."""
    return f"{number(item.value, item.unit)} {shown_unit(item)}".strip()


def evidence_limit(item: Evidence) -> str:
    """The limit as the value is written, without its unit; empty when there is none."""
    return number(item.limit, item.unit)


def shown_unit(item: Evidence) -> str:
    """The unit, unless :func:`number` has it already."""
    return SIZES.get(item.unit, "" if item.unit == "share" else clean(item.unit))


def _is_share(value: float | int | str, unit: str) -> bool:
    return isinstance(value, float) and (unit == "share" or unit.startswith("of ")) and 0 <= value <= 1


def cost_words(cost: Cost) -> str:
    """'34.1 ms/step · 17 % · 32.6 GPU-h/day'; empty when nothing is known."""
    parts = []
    if cost.ms_per_step is not None:
        parts.append(f"{span(cost.ms_per_step)}/step")
    if cost.step_share is not None:
        parts.append(f"{percent(cost.step_share)}")
    if cost.gpu_hours is not None:
        parts.append(f"{short(cost.gpu_hours)} GPU-h/day")
    return " · ".join(parts)


def job_line(signals: Signals, coverage: Coverage) -> str:
    """Ranks, hosts, devices, back ends, steps, what recording them cost and how the job ended, in one line."""
    facts, budget = signals.get(JobFacts), signals.get(StepBudget)
    parts = []
    if facts is not None:
        parts += _who(facts)
    if budget is not None:
        parts.append(_steps(budget))
    if coverage.recording_cost is not None:
        parts.append(f"recording took {_exactly(coverage.recording_cost.share)} of a step")
    if coverage.ending:
        parts.append(coverage.ending)
    return " · ".join(clean(part) for part in parts)


def recording_words(cost: RecordingCost) -> str:
    """What the recorder took, and what follows where that is more than it promises."""
    text = (
        f"Recording took {_exactly(cost.share)} of a step, as the recorder timed itself: {cost.ms_per_step:.2g} of "
        f"{cost.step_ms:.3g} ms on rank {cost.rank}, where it took most."
    )
    if cost.share <= PROMISED_SHARE:
        return text
    return (
        f"{text} That is more than the {PROMISED_SHARE:.0%} it should: steps this short are slower for being recorded."
    )


def _exactly(share: float) -> str:
    return f"{share * 100:.2f} %"


def _who(facts: JobFacts) -> list[str]:
    seen, world = len(facts.ranks), facts.world_size
    ranks = _count(seen, "rank") if seen else "ranks unknown"
    if world and world > seen:
        ranks = f"{seen} of {world:,} ranks"
    hosts = f" on {_few(facts.hosts, 'hosts')}" if facts.hosts else ""
    devices = [_few(facts.device_names, "kinds of device")] if facts.device_names else _kind(facts)
    return [ranks + hosts, *devices, *facts.backends, *(f for f in facts.frameworks if f != "pytorch")]


def _kind(facts: JobFacts) -> list[str]:
    """A job known from logs alone says nothing of devices."""
    return [] if facts.device_kind == "other" else [facts.device_kind]


def _few(names: Sequence[str], what: str) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{len(names)} {what}"


def _count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def _steps(budget: StepBudget) -> str:
    if budget.source == "window":
        return f"one window of {span(budget.step_ms)} (no steps marked)"
    excluded = len(budget.excluded_steps)
    left_out = f", {excluded} left out" if excluded else ""
    return f"{_count(budget.n_steps, 'step')} of {span(budget.step_ms)} ({SOURCES[budget.source]}{left_out})"


def coverage_lines(coverage: Coverage) -> list[str]:
    """What limits the diagnosis: ranks that are missing, files that could not be used, records that were dropped."""
    lines = []
    if coverage.ranks_missing:
        missing, expected = coverage.ranks_missing, len(coverage.ranks_expected)
        verb = "gave" if len(missing) > 1 else "gives"
        lines.append(f"{name_ranks(missing)} of {expected:,} {verb} no evidence")
    lines += [f"not used: {path}: {reason}" for path, reason in coverage.unreadable]
    lines += _notes(coverage)
    if coverage.dropped_records:
        lines.append(f"{_count(coverage.dropped_records, 'record')} could not be understood and were left out")
    return [clean(line) for line in (*lines, *coverage.notes)]


def _notes(coverage: Coverage) -> list[str]:
    """What is odd about files; one line for many files of which the same is, and for the recordings of ranks."""
    by_note: dict[str, list[str]] = {}
    ranks: dict[str, list[int]] = {}
    for item in coverage.inputs:
        if item.note and item.kind == "recording" and item.rank is not None:
            ranks.setdefault(item.note, []).append(item.rank)
        elif item.note:
            by_note.setdefault(item.note, []).append(item.path)
    of_ranks = [f"recording of {name_ranks(found)}: {note}" for note, found in ranks.items()]
    return [*of_ranks, *_of_files(by_note)]


def _of_files(by_note: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        line
        for note, paths in by_note.items()
        for line in (
            [f"{path}: {note}" for path in paths]
            if len(paths) <= MOST_FILES_EACH
            else [f"{len(paths):,} files ({paths[0]}, {paths[1]}, …): {note}"]
        )
    ]


def missing_families(abstentions: Sequence[Abstention]) -> list[str]:
    """Signals that *abstentions* lack, each once; a reason in words is none."""
    return [need for need in dict.fromkeys(n for a in abstentions for n in a.needs) if need in _FAMILY_WORDS]


def lacks(abstention: Abstention) -> str:
    """'needs grad buckets', or the reason in words."""
    needs = clean(", ".join(abstention.needs))
    return f"needs {needs}" if missing_families([abstention]) else needs


def abstention_lines(abstentions: Sequence[Abstention]) -> list[str]:
    """One line per capture that would settle something, the most useful first: '7 rules need memory: …'."""
    counts = Counter((a.needs, a.capture) for a in abstentions)
    return [
        clean(f"{_count(count, 'rule')}: {', '.join(needs)}; to settle it: {capture}")
        for (needs, capture), count in counts.most_common()
    ]
