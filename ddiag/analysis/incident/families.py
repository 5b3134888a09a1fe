"""The order in which the signals of an incident are derived."""

from __future__ import annotations

from ddiag.analysis.hang.stall import stall
from ddiag.analysis.incident.deaths import deaths
from ddiag.analysis.incident.placement import placement
from ddiag.analysis.incident.records import events, metrics, node_facts, settings, stacks
from ddiag.analysis.incident.story import story
from ddiag.model.run import Run
from ddiag.model.signals import JobFacts


def incident_families(run: Run) -> dict[type, object]:
    """Every incident family that the tables of *run* can give."""
    seen, config, taken = events(run), settings(run), stacks(run)
    facts = node_facts(run)
    placed = placement(run, seen, facts, config)
    died = deaths(seen, placed)
    stuck = stall(run, seen, died, taken, config)
    found = (seen, config, facts, metrics(run), taken, died, stuck, story(seen), placed)
    return {type(family): family for family in found if family is not None}


def incident_job(run: Run) -> JobFacts:
    """Who took part, as far as logs and dumps tell: no device was measured."""
    hosts = {host for name in ("log_events", "node_facts", "stacks") for host in run.table(name)["host"].drop_nulls()}
    placed = run.table("log_events").drop_nulls(["rank", "host"]).unique("rank", keep="first")
    return JobFacts(
        ranks=run.coverage.ranks_seen,
        world_size=len(run.coverage.ranks_expected) or None,
        device_kind="other",
        hosts=tuple(sorted(hosts)),
        host_of=dict(placed.select("rank", "host").sort("rank").iter_rows()),
    )
