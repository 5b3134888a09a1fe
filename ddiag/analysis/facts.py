"""Who took part in the run, as the evidence states it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import polars as pl

from ddiag.model.run import Run
from ddiag.model.signals import JobFacts

T = TypeVar("T")


def job_facts(run: Run) -> JobFacts:
    """Ranks, devices, hosts, backends and frameworks of *run*."""
    ranks, captures = run.table("ranks"), run.table("captures")
    hosts = ranks.filter(pl.col("host").is_not_null()).select("rank", "host").unique("rank", keep="first")
    return JobFacts(
        ranks=tuple(sorted(ranks["rank"].unique().to_list())),
        world_size=_commonest(ranks["world_size"].drop_nulls().to_list()),
        device_kind=_commonest(ranks["device_kind"].drop_nulls().to_list()) or "other",
        device_names=_unique(ranks["device_name"]),
        hosts=_unique(ranks["host"]),
        backends=_unique(ranks["backend"]),
        frameworks=_unique(captures["framework"]),
        with_stack=bool(captures["with_stack"].fill_null(value=False).any()),
        ranks_known=bool(ranks["rank_known"].fill_null(value=False).all()),
        host_of=dict(hosts.sort("rank").iter_rows()),
    )


def _unique(column: pl.Series) -> tuple[str, ...]:
    return tuple(sorted(column.drop_nulls().unique().to_list()))


def _commonest(values: Iterable[T]) -> T | None:
    """The most frequent value; the first seen among equals."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else None
