"""The on-call view of a stuck or crashed job on one screen: the culprit first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddiag.model.signals import Signals
from ddiag.reporters.hang_view import Calls, HangView, StackGroup, Waiting, ranks_words
from ddiag.reporters.terminal import MOST_FIXES, PROSE_WIDTH, STYLES, TerminalReporter
from ddiag.reporters.words import clean, job_line
from ddiag.rulekit.cost import name_ranks
from ddiag.rulekit.diagnosis import Diagnosis, Status
from ddiag.rulekit.finding import Confidence, Finding, Severity

_SIDE_BY_SIDE_FROM = 150


@dataclass(frozen=True)
class HangReporter(TerminalReporter):
    """Like the terminal's report, with a hang where the steps would be; without a hang, that report."""

    view: HangView | None = None

    def _page(self, diagnosis: Diagnosis, signals: Signals) -> RenderableType:
        view = self.view
        if view is None:
            return super()._page(diagnosis, signals)
        wide = self.width >= _SIDE_BY_SIDE_FROM
        left = min(PROSE_WIDTH, self.width - 70) if wide else min(self.width, PROSE_WIDTH)
        head, first = self._verdict(view, diagnosis, signals), self._what_to_do(diagnosis)
        second = [*self._stack_groups(view), *self._who_waits(view), *self._last_calls(view)]
        others = self._rest(view, diagnosis, left)
        if not wide:
            return Padding(
                Group(*head, *first, *second, *others, *self._foot(diagnosis)), (0, max(self.width - left, 0), 0, 0)
            )
        body = Table.grid(padding=(0, 4, 0, 0))
        body.add_column(width=left)
        body.add_column(width=self.width - left - 4)
        body.add_row(Group(*first, *others), Group(*second))
        return Group(*head, body, *self._foot(diagnosis))

    def _verdict(self, view: HangView, diagnosis: Diagnosis, signals: Signals) -> list[RenderableType]:
        crashed = diagnosis.verdict.status is Status.CRASHED
        status = Status.CRASHED if crashed else Status.STALLED if view.stall.culprits else diagnosis.verdict.status
        sentence = Text()
        sentence.append(f"{self.glyphs.status[status]} {status.value.upper()}  ", STYLES[status])
        sentence.append(clean(diagnosis.verdict.headline) if crashed else view.headline, "bold")
        lines: list[RenderableType] = [sentence, Text(clean(job_line(signals, diagnosis.coverage)), "dim")]
        if crashed:
            where = diagnosis.findings[0].culprits.where if diagnosis.findings else None
            lines += [Text(f"{self.glyphs.culprit} at {clean(where)}")] if where else []
            lines.append(Text(view.headline))
        lines += [Text(f"{self.glyphs.culprit} {state}") for state in view.states]
        if view.stall.settle and not _settled(diagnosis):
            lines.append(Text(f"To settle it: {clean(view.stall.settle)}"))
        return lines

    def _what_to_do(self, diagnosis: Diagnosis) -> list[RenderableType]:
        first = _acted_on(diagnosis)
        if first is None:
            return []
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for index, fix in enumerate(first.fix[:MOST_FIXES], start=1):
            table.add_row(f"{index}.", Text(clean(fix)))
        head = self._title("What to do")
        head.append(f"  {first.rule}, {first.confidence.value} confidence", "not bold dim")
        return [Text(), head, table]

    # -- stacks and groups ---------------------------------------------------------------------------------------------

    def _stack_groups(self, view: HangView) -> list[RenderableType]:
        if not view.stacks:
            return []
        parts: list[RenderableType] = [Text(), self._title("Where they are")]
        for one in view.stacks:
            parts += self._one_stack(one)
        if view.more_stacks:
            parts.append(Text(f"{self.glyphs.ellipsis} {view.more_stacks} more kinds of stack", "dim"))
        return parts

    def _one_stack(self, one: StackGroup) -> list[RenderableType]:
        mark = f"{self.glyphs.culprit} " if one.culprit else "  "
        head = Text(f"{mark}{ranks_words(one.ranks)}", "bold red" if one.culprit else "bold")
        lines: list[RenderableType] = [head]
        for frame, own in zip(one.frames, one.own, strict=True):
            lines.append(Text(f"    {frame}", "bold" if own else "dim", no_wrap=True, overflow="ellipsis"))
        if one.left_out:
            lines.append(Text(f"    {self.glyphs.ellipsis} {one.left_out} more", "dim"))
        return lines

    def _who_waits(self, view: HangView) -> list[RenderableType]:
        if not view.waiting:
            return []
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(4):
            table.add_column(overflow="fold")
        table.add_row(*(Text(head, "dim") for head in ("call", "wait in it", "missing", "since")))
        for one in view.waiting:
            table.add_row(*(Text(cell) for cell in _waiting_cells(one)))
        more = f"{self.glyphs.ellipsis} {view.more_waiting} more groups wait"
        return [Text(), self._title("Who waits"), table, *([Text(more, "dim")] if view.more_waiting else [])]

    def _last_calls(self, view: HangView) -> list[RenderableType]:
        parts: list[RenderableType] = []
        for one in view.calls:
            if one.calls:
                parts += [Text(), self._title(f"Last collectives of {one.group}"), self._calls_of(one)]
        return parts

    def _calls_of(self, one: Calls) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for call in one.calls:
            words = [f"done on {call.done:,}"] if call.done else []
            words += [f"{call.waiting:,} wait"] if call.waiting else []
            words += [f"missing: {name_ranks(call.missing)}"] if call.missing else []
            words += [f"something else on {name_ranks(call.odd)}"] if call.odd else []
            style = "" if call.waiting or call.missing else "dim"
            numel = "" if call.numel is None else f"{call.numel:,} el"
            table.add_row(*(Text(cell, style) for cell in (f"#{call.seq}", clean(call.op), numel, ", ".join(words))))
        return table

    def _rest(self, view: HangView, diagnosis: Diagnosis, width: int) -> list[RenderableType]:
        first = _acted_on(diagnosis)
        others = tuple(one for one in diagnosis.findings if one is not first)
        return [Text(), self._title("Also found"), self._others(others, width)] if others else []


def _acted_on(diagnosis: Diagnosis) -> Finding | None:
    return next((one for one in diagnosis.findings if one.severity is not Severity.INFO), None)


def _waiting_cells(one: Waiting) -> tuple[str, str, str, str]:
    since = (
        "" if one.since_ns is None else f"{datetime.fromtimestamp(one.since_ns / 1e9, tz=timezone.utc):%H:%M:%S} UTC"
    )
    missing = name_ranks(one.missing) if one.missing else "nobody"
    waiting = f"{len(one.waiting):,} of {one.size:,}" if len(one.waiting) > 4 else name_ranks(one.waiting)
    return f"{one.call} of {one.group}", waiting, missing, since


def _settled(diagnosis: Diagnosis) -> bool:
    """The first finding decides: nothing has to be asked any more."""
    return bool(diagnosis.findings) and diagnosis.findings[0].confidence is Confidence.HIGH
