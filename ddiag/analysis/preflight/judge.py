"""All checks of one node, in the order in which a person would go through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddiag.analysis.preflight import gpu, host, network, software, storage
from ddiag.model.preflight import Check, NodeReport, Outcome

AREAS: tuple[Callable[[NodeReport], Iterator[Check]], ...] = (
    host.checks,
    storage.checks,
    network.checks,
    software.checks,
    gpu.checks,
)


def judge(report: NodeReport) -> tuple[Check, ...]:
    """Every check that this node's facts allow, and one skipped check for each thing that could not be looked at."""
    found = [check for area in AREAS for check in area(report)]
    skipped = [Check(one.what, Outcome.SKIPPED, one.why) for one in report.could_not]
    return (*found, *skipped)
