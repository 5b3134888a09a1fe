"""Parameter gathers and gradient scatters."""

from __future__ import annotations

import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.collectives import match
from ddiag.analysis.shard_units import shard_units
from ddiag.model.run import Run
from ddiag.model.signals import ShardUnits
from tests.builders import RunBuilder
from tests.unit.analysis.simulated import every_step_steady

MIB = 1 << 20


def units_of(run: Run) -> ShardUnits | None:
    windows, acts = every_step_steady(run), activity(run)
    return shard_units(run, windows, acts, match(run, windows, acts))


def sharded(
    *, units: int = 4, prefetch: bool = True, annotation: str | None = "FSDP::all_gather (0)", twice: bool = True,
    scatter: str = "reduce_scatter", ranks: int = 2, source: str = "kernel"
) -> Run:  # fmt: skip
    """Each unit: a gather of 10 ms and 20 ms of compute, in forward and again in backward, then a scatter of 5 ms.

    With prefetch a gather runs beside the compute of the unit before it.
    """
    builder = RunBuilder(world_size=ranks)
    for rank in range(ranks):
        for step in range(3):
            at = 1000.0 * step
            builder.rank(rank).step(step, at, 1000)
            if annotation:
                builder.annotation(annotation, at, 1)
            for begin in (at, at + 400) if twice else (at,):
                _walk(builder, begin, units, ranks, prefetch=prefetch)
            for unit in range(units):
                size = 8 * MIB if scatter == "reduce_scatter" else 4 * MIB
                builder.collective(scatter, at + 800 + 6 * unit, 5, bytes_in=size, bytes_out=4 * MIB, group_size=ranks)
    return builder.build()


def _walk(builder: RunBuilder, at: float, units: int, ranks: int, *, prefetch: bool) -> None:
    gather, compute = at, at + 10
    for _ in range(units):
        builder.collective("all_gather", gather, 10, bytes_in=4 * MIB, bytes_out=4 * MIB * ranks, group_size=ranks)
        builder.launch_kernel("gemm", compute, compute, 20)
        gather = compute + 5 if prefetch else compute + 20
        compute = compute + 20 if prefetch else gather + 10


def test_counts_and_sizes_per_step() -> None:
    found = units_of(sharded())
    assert found is not None
    assert (found.gathers_per_step, found.framework) == (8.0, "fsdp2")
    assert (found.median_gather_bytes, found.largest_gather_bytes) == (8 * MIB, 8 * MIB)
    assert found.total_gather_bytes == 64 * MIB
    rows = {row["op"]: row for row in found.table.iter_rows(named=True)}
    assert rows["all_gather"]["count_per_step"] == 8.0
    assert rows["reduce_scatter"]["count_per_step"] == 4.0
    assert rows["reduce_scatter"]["bytes"] == 8 * MIB


def test_prefetched_gathers_run_beside_the_compute_of_the_unit_before() -> None:
    found = units_of(sharded(prefetch=True))
    assert found is not None
    assert found.prefetched_share == pytest.approx(6 / 7)  # backward's first gather follows a pause
    assert found.gather_exposed_ms == pytest.approx(20.0)
    assert found.scatter_exposed_ms == pytest.approx(20.0)


def test_gathers_that_compute_waits_for_are_not_prefetched() -> None:
    found = units_of(sharded(prefetch=False))
    assert found is not None
    assert found.prefetched_share == 0.0
    assert found.gather_exposed_ms == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("annotation", "framework"),
    [
        ("FullyShardedDataParallel.forward", "fsdp1"),
        ("FSDP::pre_forward (layers.0)", "fsdp2"),
        ("deepspeed/runtime/zero/partitioned_param_coordinator.py(300): PartitionedParameterCoordinator", "deepspeed"),
    ],
)
def test_the_framework_is_known_by_its_spans(annotation: str, framework: str) -> None:
    found = units_of(sharded(annotation=annotation))
    assert found is not None
    assert found.framework == framework


def test_units_gathered_twice_per_scatter_show_sharding_without_spans() -> None:
    found = units_of(sharded(annotation=None))
    assert found is not None
    assert found.framework == ""


def test_a_sharded_optimizer_is_not_sharded_data_parallelism() -> None:
    assert units_of(sharded(annotation=None, twice=False)) is None


def test_a_backend_that_scatters_by_all_reduce_is_understood() -> None:
    found = units_of(sharded(scatter="all_reduce"))
    assert found is not None
    assert found.table["op"].to_list() == ["all_gather", "all_reduce"]
    assert found.scatter_exposed_ms == pytest.approx(20.0)


def test_gathers_of_metrics_are_not_units() -> None:
    builder = RunBuilder().step(0, 0, 100).annotation("FSDP::all_gather", 0, 1).launch_kernel("gemm", 0, 0, 10)
    assert units_of(builder.collective("all_gather", 20, 1, bytes_in=8, bytes_out=16, group_size=2).build()) is None
