"""Backward passes and optimizer steps on the host, and which collectives reduce gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ddiag.analysis.intervals import EMPTY, Intervals, Times, union
from ddiag.analysis.names import outermost, times, where_name
from ddiag.analysis.recorded.marks import in_phase
from ddiag.model.run import Run

_NODE = "autograd::engine::evaluate_function:"
_ACCUMULATE = f"{_NODE} torch::autograd::AccumulateGrad"
_OPTIMIZER = "Optimizer.step#"
MIN_GRADIENT_BYTES = 1024
"""Smaller reductions outside backward are metrics, norms and overflow checks."""
_FORWARD_OPERATORS = 4
"""Operators between two backward nodes that make a forward of them; hooks and callbacks run fewer."""


@dataclass(frozen=True)
class Backward:
    """What one rank did on the host, as disjoint intervals in ns."""

    passes: Intervals
    """One row per backward pass."""
    leaves: Intervals
    """Where a gradient was accumulated: hooks that reduce gradients run here."""
    leaf_count: int
    optimizer: Intervals
    """Optimizer steps."""

    def during(self, at: Times) -> npt.NDArray[np.bool_]:
        """Issued by a hook of a finished gradient."""
        return _inside(self.leaves, at)

    def after(self, at: Times) -> npt.NDArray[np.bool_]:
        """Issued between the end of a backward pass and the optimizer step that follows it."""
        following = np.searchsorted(self.optimizer[:, 0], at, side="right")
        last_step = np.append(-np.inf, self.optimizer[:, 1])[np.searchsorted(self.optimizer[:, 1], at, side="right")]
        ended = np.searchsorted(self.passes[:, 1], at, side="right")
        last_pass = np.append(-np.inf, self.passes[:, 1])[ended]
        begun = np.searchsorted(self.passes[:, 0], at, side="right")
        return np.asarray((following < len(self.optimizer)) & (last_pass > last_step) & (begun == ended))

    def within(self, at: Times) -> npt.NDArray[np.bool_]:
        """Issued while a backward pass runs, by whomever."""
        return _inside(self.passes, at)

    @property
    def leaves_per_pass(self) -> float:
        """Gradients accumulated in one backward pass."""
        return self.leaf_count / max(len(self.passes), 1)

    def pass_of(self, at: Times) -> Times:
        """Number of the backward pass begun last before each time; -1 before the first."""
        return np.searchsorted(self.passes[:, 0], at, side="right") - 1


def _inside(spans: Intervals, at: Times) -> npt.NDArray[np.bool_]:
    row = np.searchsorted(spans[:, 0], at, side="right") - 1
    ends = np.append(spans[:, 1], np.iinfo(np.int64).min)
    return np.asarray((row >= 0) & (at <= ends[row]))


def backward(run: Run, rank: int) -> Backward:
    """The backward passes of *rank*; empty when neither operators nor phases were recorded."""
    if run.recorded:
        passes = in_phase(run, rank, "backward")
        return Backward(passes, passes, len(passes), in_phase(run, rank, "optimizer"))
    ops = run.table("ops").filter((pl.col("rank") == rank) & (pl.col("kind") != "gpu_annotation"))
    nodes = where_name(ops, lambda name: name.startswith(_NODE))
    if nodes.is_empty():
        nodes = ops.filter((pl.col("kind") == "op") & (pl.col("fwd_tid") > 0))
    nodes = outermost(nodes).sort("start_ns")
    leaves = where_name(nodes, lambda name: name == _ACCUMULATE)
    steps = outermost(where_name(ops, lambda name: name.startswith(_OPTIMIZER)))
    steps = steps.filter(~pl.Series(_inside(_spans(nodes), times(steps, "start_ns"))))  # not one per parameter in hooks
    accumulated, optimizer = _spans(leaves), _spans(steps)
    operators = np.sort(times(where_name(ops, lambda name: name.startswith("aten::")), "start_ns"))
    passes = _accumulating(_passes(nodes, optimizer, operators), accumulated)
    return Backward(passes, accumulated, leaves.height, optimizer)


def _spans(frame: pl.DataFrame) -> Intervals:
    return union(times(frame, "start_ns"), times(frame, "end_ns")) if frame.height else EMPTY


def _accumulating(passes: Intervals, leaves: Intervals) -> Intervals:
    """Leave out gradients of gradients and the like: passes in which no parameter received a gradient."""
    if not len(leaves) or not len(passes):
        return passes
    begun = np.searchsorted(leaves[:, 0], passes[:, 0], side="left")
    ended = np.searchsorted(leaves[:, 0], passes[:, 1], side="right")
    kept: Intervals = passes[ended > begun]
    return kept


def _passes(nodes: pl.DataFrame, optimizer: Intervals, operators: Times) -> Intervals:
    """Group backward nodes into passes.

    A new one begins after an optimizer step, after a forward (operators between two nodes), and at a node numbered
    above all before it: the forward counts its operators upwards, and the engine takes the highest that is ready.
    """
    if nodes.is_empty():
        return EMPTY
    start, end = times(nodes, "start_ns"), np.maximum.accumulate(times(nodes, "end_ns"))
    sequence = nodes["sequence"].fill_null(-1).to_numpy()
    highest = np.maximum.accumulate(sequence)[:-1]
    epoch = np.searchsorted(optimizer[:, 0], start, side="right")
    between = np.searchsorted(operators, start[1:], side="left") - np.searchsorted(operators, end[:-1], side="left")
    new = (epoch[1:] != epoch[:-1]) | (between >= _FORWARD_OPERATORS) | ((sequence[1:] > highest) & (highest >= 0))
    first = np.concatenate(([0], np.flatnonzero(new) + 1))
    last = np.append(first[1:], len(start)) - 1
    return np.column_stack((start[first], end[last]))
