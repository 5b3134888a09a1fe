"""The checks of a node, and the differences between nodes, for a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ddiag.model.preflight import Check, Difference, NodeReport, Outcome
from ddiag.reporters.terminal import ColorSystem
from ddiag.reporters.words import clean

_SHAPES = {Outcome.FAIL: ("■", "bold red"), Outcome.WARN: ("▲", "bold yellow"), Outcome.OK: ("✔", "green"),
           Outcome.SKIPPED: ("?", "cyan")}  # fmt: skip
_PLAIN = str.maketrans({"■": "x", "▲": "!", "✔": "+", "×": "x", "…": "...", "°": " ", "↳": ">"})
PROSE_WIDTH = 110
MOST_DIFFERENCES = 30


@dataclass(frozen=True)
class DoctorReporter:
    """Text for a terminal of *width* columns."""

    width: int = 80
    color_system: ColorSystem | None = None
    ascii_only: bool = False

    def one(self, report: NodeReport, checks: Sequence[Check]) -> str:
        """The checks of one node: a verdict, what is wrong with meaning and fix, then what is fine."""
        worst = [check for check in checks if check.outcome in (Outcome.FAIL, Outcome.WARN)]
        parts: list[RenderableType] = [_verdict(report, checks)]
        for check in sorted(worst, key=lambda one: one.outcome.order):
            parts += [Text(), _headed(check), *_explained(check)]
        parts += self._listed("Fine", [check for check in checks if check.outcome is Outcome.OK])
        parts += self._listed("Not checked", [check for check in checks if check.outcome is Outcome.SKIPPED])
        return self._rendered(parts)

    def several(self, reports: Sequence[NodeReport], differences: Sequence[Difference]) -> str:
        """Who is unlike the others."""
        hosts = len({report.host for report in reports})
        if not differences:
            return self._rendered(
                [Text(f"✔ {len(reports)} reports of {hosts} nodes: no difference that matters", "bold green")]
            )
        odd = sorted({host for one in differences if one.decided for host in one.hosts})
        title = (
            f"▲ {len(odd)} of {hosts} nodes differ from the others"
            if odd
            else f"▲ {hosts} nodes differ, and none is usual"
        )
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(4):
            table.add_column(overflow="fold")
        table.add_row(*(Text(words, "dim") for words in ("node", "fact", "here", "elsewhere")))
        for one in differences[:MOST_DIFFERENCES]:
            name = f"{one.key} of {one.device}" if one.device else one.key
            usual = f"{one.usual} ({one.majority} of {len(reports)})"
            table.add_row(clean(", ".join(one.hosts[:4])), clean(name), Text(clean(one.value), "bold"), clean(usual))
        more = len(differences) - MOST_DIFFERENCES
        return self._rendered(
            [
                Text(title, "bold yellow"),
                Text(),
                table,
                *([Text(f"… {more} more differences", "dim")] if more > 0 else []),
            ]
        )

    def _listed(self, title: str, checks: Sequence[Check]) -> list[RenderableType]:
        if not checks:
            return []
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for check in checks:
            shape, style = _SHAPES[check.outcome]
            table.add_row(Text.assemble((shape, style), " ", clean(check.name)), Text(clean(check.found), "dim"))
        return [Text(), Text(title.upper(), "bold"), table]

    def _rendered(self, parts: Sequence[RenderableType]) -> str:
        stream = io.StringIO()
        console = Console(
            file=stream, width=min(self.width, PROSE_WIDTH), force_terminal=self.color_system is not None,
            color_system=self.color_system, highlight=False, markup=False, emoji=False, legacy_windows=False,
            _environ={},
        )  # fmt: skip
        for part in parts:
            console.print(part)
        text = "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
        return text.translate(_PLAIN).encode("ascii", errors="replace").decode() if self.ascii_only else text


def _verdict(report: NodeReport, checks: Sequence[Check]) -> Text:
    count = {outcome: sum(check.outcome is outcome for check in checks) for outcome in Outcome}
    worst = min((check.outcome for check in checks if check.outcome is not Outcome.SKIPPED), key=lambda o: o.order)
    shape, style = _SHAPES[worst]
    words = {
        Outcome.FAIL: f"{count[Outcome.FAIL]} that will break or slow jobs, {count[Outcome.WARN]} to look at",
        Outcome.WARN: f"{count[Outcome.WARN]} to look at",
    }.get(worst, "nothing to mend")
    text = Text.assemble((f"{shape} {clean(report.host)}", style), (f"  {words}", "bold"))
    return text.append(f"; {count[Outcome.OK]} fine, {count[Outcome.SKIPPED]} not checked", "dim")


def _headed(check: Check) -> Text:
    shape, style = _SHAPES[check.outcome]
    return Text.assemble((f"{shape} {clean(check.name)}", style), ": ", clean(check.found))


def _explained(check: Check) -> list[RenderableType]:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for words, text in (("  Why", check.meaning), ("  Fix", check.fix)):
        if text:
            table.add_row(words, clean(text))
    return [table]
