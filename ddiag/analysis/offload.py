"""Whether host<->device copies are offloading (optimizer state, parameters, activations) rather than the next batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ddiag.analysis.device_work import device_work
from ddiag.analysis.intervals import covered
from ddiag.analysis.names import of_kind, spans_union, times, where_name
from ddiag.analysis.op_names import is_autograd_node
from ddiag.analysis.optimizer_spans import cpu_optimizer_spans, optimizer_spans
from ddiag.analysis.steps import StepWindows
from ddiag.model.run import Run

LARGE_BYTES = 1 << 20
"""Copies of at least this size move tensors; smaller ones are scalars, indices and logging."""
_SERIOUS_BYTES = 64 << 20
"""Traffic per step, both ways, that is offloading of some kind even when its pattern is not recognised."""
_ALIKE = 0.6
"""Two sets of copies are the same tensors when this share of each side's bytes finds a copy of equal size."""
_MANY = 4
"""Parameters come in at least this many copies per step; a batch comes in fewer."""
_ACTIVATION_HOOKS = re.compile(r"save_on_cpu|OffloadActivations|offload_activation|activation_offload", re.IGNORECASE)
_OPTIMIZER_HOOKS = re.compile(r"CPUAdam|cpu_adam|ds_adam_step|CPUOffloadOptimizer|offload_optimizer", re.IGNORECASE)


@dataclass(frozen=True)
class Offload:
    kind: str
    """'' (not offloading), optimizer, parameters, activations or unknown."""
    rows: pl.DataFrame
    """The copies that belong to it."""


def offload_copies(run: Run, rows: pl.DataFrame, windows: StepWindows) -> Offload:
    """What the large copies of *rows* (steady host<->device copies with their step) are for.

    Judged by when the host issued them: before, during or after backward of their step.
    """
    large = _with_phase(run, rows.filter(pl.col("bytes") >= LARGE_BYTES), windows)
    if large.is_empty():
        return Offload("", large)
    for kind, found in (
        ("activations", _activations(run, large)),
        ("optimizer", _optimizer(run, large)),
        ("parameters", _parameters(large)),
        ("unknown", _unexplained(large)),
    ):
        if found.height:
            return Offload(kind, found)
    return Offload("", large.clear())


def _with_phase(run: Run, large: pl.DataFrame, windows: StepWindows) -> pl.DataFrame:
    """*large* with ``phase``: backward (while the host runs backward), after (later in the step) or forward."""
    issued = device_work(run).filter(pl.col("kind") == "copy")
    issued = issued.select("rank", "correlation", "start_ns", "launch_start_ns").unique(
        ["rank", "correlation", "start_ns"]
    )
    placed = large.join(issued, on=["rank", "correlation", "start_ns"], how="left")
    placed = placed.with_columns(pl.coalesce("launch_start_ns", "start_ns").alias("_at"))
    nodes = where_name(of_kind(run.table("ops"), "op"), is_autograd_node)
    steps = windows.steady.select("rank", "step", "host_start_ns", "host_end_ns")
    parts = [
        _phase_of(group, nodes.filter(pl.col("rank") == rank), steps.filter(pl.col("rank") == rank))
        for (rank,), group in placed.group_by("rank")
    ]
    return pl.concat(parts) if parts else placed.with_columns(phase=pl.lit("forward"))


def _phase_of(copies: pl.DataFrame, nodes: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    at = times(copies, "_at")
    backward = spans_union(nodes)
    during = covered(backward, at, at + 1) > 0
    ends = np.sort(times(nodes, "end_ns"))
    last = np.array(
        [_latest(ends, start, end) for start, end in steps.select("host_start_ns", "host_end_ns").iter_rows()],
        dtype=np.int64,
    )
    begins = times(steps, "host_start_ns")
    order = np.argsort(begins)
    owner = order[np.clip(np.searchsorted(begins[order], at, side="right") - 1, 0, len(order) - 1)]
    after = (last[owner] > 0) & (at >= last[owner])
    phase = np.where(during, "backward", np.where(after, "after", "forward"))
    return copies.with_columns(pl.Series("phase", phase))


def _latest(ends: np.ndarray, start: int, end: int) -> int:
    """Last of the sorted *ends* in [start, end), 0 if none."""
    index = int(np.searchsorted(ends, end)) - 1
    return int(ends[index]) if index >= 0 and ends[index] >= start else 0


def _part(large: pl.DataFrame, direction: str, *phases: str) -> pl.DataFrame:
    return large.filter((pl.col("direction") == direction) & pl.col("phase").is_in(phases))


def _same_tensors(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    """Most bytes of each side are in copies whose size the other side has, too."""
    sizes = [part.group_by("bytes").len() for part in (one, other)]
    both = sizes[0].join(sizes[1], on="bytes", how="inner", suffix="_other")
    shared = int((both["bytes"] * both.select(pl.min_horizontal("len", "len_other")).to_series()).sum())
    return shared > 0 and shared >= _ALIKE * max(int(part["bytes"].sum()) for part in (one, other))


def _activations(run: Run, large: pl.DataFrame) -> pl.DataFrame:
    """Out during forward, the same sizes back during backward; or hooks on the Python stack that say so."""
    out, back = _part(large, "d2h", "forward"), _part(large, "h2d", "backward")
    if out.is_empty() or back.is_empty():
        return large.clear()
    said = _any_span(run, lambda name: _ACTIVATION_HOOKS.search(name) is not None)
    return pl.concat([out, back]) if said or _same_tensors(out, back) else large.clear()


def _optimizer(run: Run, large: pl.DataFrame) -> pl.DataFrame:
    """Gradients out during or after backward, parameters in after it: updated on the CPU, or state swapped."""
    out, back = _part(large, "d2h", "backward", "after"), _part(large, "h2d", "after")
    if out.is_empty() or back.is_empty():
        return large.clear()
    on_cpu = not cpu_optimizer_spans(run, device_work(run)).is_empty()
    said = on_cpu or _any_span(run, lambda name: _OPTIMIZER_HOOKS.search(name) is not None)
    swapped = not optimizer_spans(run).is_empty() and _same_tensors(out, back)
    return pl.concat([out, back]) if said or swapped else large.clear()


def _parameters(large: pl.DataFrame) -> pl.DataFrame:
    """The same sizes in during forward and again during backward, in many copies per step."""
    forward, backward = _part(large, "h2d", "forward"), _part(large, "h2d", "backward")
    steps = large.select("rank", "step").n_unique()
    if min(forward.height, backward.height) < _MANY * steps or not _same_tensors(forward, backward):
        return large.clear()
    return pl.concat([forward, backward, _part(large, "d2h", "backward", "after")])


def _unexplained(large: pl.DataFrame) -> pl.DataFrame:
    steps = large.select("rank", "step").n_unique()
    ways: Sequence[int] = [int(large.filter(pl.col("direction") == way)["bytes"].sum()) for way in ("h2d", "d2h")]
    return large if min(ways) >= _SERIOUS_BYTES * steps else large.clear()


def _any_span(run: Run, wanted: Callable[[str], bool]) -> bool:
    return not where_name(run.table("ops"), wanted).is_empty()
