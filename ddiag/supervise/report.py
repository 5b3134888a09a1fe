"""The diagnosis at the end of a run: ``ddiag analyze RUN`` in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddiag.schema.folder import ANALYSIS_LOG, DIAGNOSIS, REPORT
from ddiag.supervise.side_process import Limits, run_aside

LIMIT_S = 300.0
HURRIED_LIMIT_S = 20.0
"""When somebody asked the job to end: a scheduler kills what is left after half a minute or so."""
INTERRUPTED_LIMIT_S = 10.0
"""After Ctrl-C: somebody waits at the terminal."""
_MOST_FINDINGS = 3
_ANALYZE = "from ddiag.cli import main; sys.exit(main(sys.argv[1:]))"


def analyze(run: Path, limits: Limits) -> str:
    """Diagnose *run*; why there is no report, empty when there is."""
    arguments = ["analyze", str(run), "--html", str(run / REPORT), "--json", str(run / DIAGNOSIS), "--quiet"]
    return run_aside(_ANALYZE, arguments, run / ANALYSIS_LOG, limits)


def summary(run: Path) -> Iterator[str]:
    """The diagnosis in a few lines."""
    found = json.loads((run / DIAGNOSIS).read_text(encoding="utf-8"))
    verdict = found["verdict"]
    yield f"{verdict['status']}: {verdict['headline']}"
    causes = [one for one in found["findings"] if one["severity"] != "info"]
    for one in causes[:_MOST_FINDINGS]:
        yield f"  {one['severity']} {one['rule']} {one['title']}{_cost(one)}{_cause(one)}"
        if one["fix"]:
            yield f"    fix: {one['fix'][0]}"
    if len(causes) > _MOST_FINDINGS:
        yield f"  and {len(causes) - _MOST_FINDINGS} more"


def _cost(finding: dict[str, Any]) -> str:
    cost = finding["cost"].get("ms_per_step")
    said = "ms per step" in finding["title"]
    return "" if cost is None or said else f" ({_milliseconds(cost)} per step)"


def _milliseconds(value: float) -> str:
    """Three significant digits, in seconds from one on."""
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _cause(finding: dict[str, Any]) -> str:
    cause = finding.get("explained_by")
    return f" (due to {cause})" if cause else ""
