"""The tables people can query and export: the facts of a run, and what analysis derives from them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ddiag.model import signals as families
from ddiag.model.tables import TABLES

if TYPE_CHECKING:
    import polars as pl

    from ddiag.model.run import Run
    from ddiag.model.signals import Signals

UNITS = (("_ns", "ns"), ("_us", "µs"), ("_ms", "ms"), ("_bytes", "bytes"), ("_gbps", "GB/s"), ("_share", "0–1"))
"""Endings of derived columns and what they are measured in."""


@dataclass(frozen=True)
class DerivedTable:
    """A frame inside a signal family."""

    family: type
    attribute: str

    @property
    def meaning(self) -> str:
        """The docstring under the attribute in ``ddiag.model.signals``."""
        return _attribute_docs().get((self.family.__name__, self.attribute), "")

    def frame(self, signals: Signals) -> pl.DataFrame | None:
        """The table, or None when the evidence cannot give it."""
        return getattr(signals.get(self.family), self.attribute, None)


DERIVED: Mapping[str, DerivedTable] = MappingProxyType(
    {
        "steps_budget": DerivedTable(families.StepBudget, "table"),
        "input_wait": DerivedTable(families.InputWait, "per_rank"),
        "long_gaps": DerivedTable(families.HostLaunch, "long_gaps"),
        "sync_points": DerivedTable(families.SyncPoints, "table"),
        "collectives_matched": DerivedTable(families.Collectives, "table"),
        "collectives_summary": DerivedTable(families.Collectives, "summary"),
        "late_ranks": DerivedTable(families.LateRanks, "table"),
        "grad_buckets": DerivedTable(families.GradBuckets, "table"),
        "shard_units": DerivedTable(families.ShardUnits, "table"),
        "copies_summary": DerivedTable(families.Copies, "table"),
        "copies_per_rank": DerivedTable(families.Copies, "per_rank"),
        "kernel_mix": DerivedTable(families.KernelMix, "table"),
        "top_kernels": DerivedTable(families.KernelMix, "top"),
        "kernels_per_rank": DerivedTable(families.KernelMix, "per_rank"),
        "precision_mix": DerivedTable(families.Precision, "table"),
        "memory_per_rank": DerivedTable(families.Memory, "per_rank"),
        "memory_timeline": DerivedTable(families.Memory, "timeline"),
        "link_bandwidth": DerivedTable(families.Links, "table"),
    }
)


@cache
def _attribute_docs() -> dict[tuple[str, str], str]:
    """(class, attribute) -> docstring, from the source of the signals."""
    source = Path(families.__file__).read_text(encoding="utf-8")
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for field, after in zip(node.body, node.body[1:], strict=False):
                match field, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[node.name, name] = " ".join(text.split())
    return found


def unit_of(column: str) -> str:
    """The unit of a derived column, by its ending."""
    return next((unit for ending, unit in UNITS if column.endswith(ending)), "")


def all_tables(run: Run, signals: Signals | None) -> dict[str, pl.DataFrame]:
    """Facts, each with its declared columns even when empty, and the derived tables the evidence gives."""
    frames = {name: run.table(name) for name in TABLES}
    if signals is not None:
        for name, derived in DERIVED.items():
            frame = derived.frame(signals)
            if frame is not None:
                frames[name] = frame
    return frames


def needs_analysis(words: Iterable[str]) -> bool:
    """Whether any of *words* is a derived table, so that facts alone do not do."""
    return not DERIVED.keys().isdisjoint(words)
