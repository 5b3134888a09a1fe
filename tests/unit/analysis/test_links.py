"""Achieved against expected bandwidth: accuse only what is certain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import polars as pl
import pytest

from ddiag.analysis.activity import activity
from ddiag.analysis.collectives import match
from ddiag.analysis.expected_bandwidth import expected_gbps, fabric_of
from ddiag.analysis.facts import job_facts
from ddiag.analysis.links import links
from ddiag.model.signals import Links
from tests.builders import RunBuilder
from tests.shared import shared_data
from tests.unit.analysis.simulated import Compute, Job, Meet, every_step_steady

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"


def job(
    busbw: Mapping[str, float], groups: Mapping[str, tuple[int, ...]], *, device: str | None = H100,
    hosts: int | None = 1, size: int = GIB, traced: tuple[int, ...] | None = None, local_devices: bool = False
) -> Links | None:  # fmt: skip
    """Groups that reach *busbw* GB/s; ranks spread over *hosts* machines evenly, or host names unknown (None)."""

    def program(rank: int, step: int) -> list[Compute | Meet]:
        mine = [name for name, members in groups.items() if rank in members]
        factor = {name: 2 * (len(groups[name]) - 1) / len(groups[name]) for name in mine}
        return [
            action
            for name in mine
            for action in (
                Compute(5 + rank % 3),
                Meet(name, bytes=size, transfer_ms=size * factor[name] / busbw[name] / 1e6),
            )
        ]

    run = Job(groups, program, traced=traced).run()
    count = run.table("ranks").height
    host = [f"node{rank * (hosts or 1) // count}" if hosts else None for rank in range(count)]
    ranks = run.table("ranks").sort("rank").with_columns(device_name=pl.lit(device, dtype=pl.String))
    ranks = ranks.with_columns(pl.Series("host", host, dtype=pl.String))
    kernels = run.table("kernels")
    if local_devices:
        kernels = kernels.with_columns(device="rank")
    run = dataclasses.replace(run, tables={**run.tables, "ranks": ranks, "kernels": kernels})
    acts, windows = activity(run), every_step_steady(run)
    return links(run, job_facts(run), match(run, windows, acts))


def test_a_group_on_one_node_is_compared_with_its_fabric() -> None:
    found = job({"0": 300.0}, {"0": tuple(range(8))})
    assert found is not None
    row = found.table.row(0, named=True)
    assert row["busbw_gbps"] == pytest.approx(300.0)
    assert row["efficiency"] == pytest.approx(300.0 / row["expected_gbps"])
    assert 0.8 < row["efficiency"] < 1.0
    assert "NVLink" in row["basis"]
    assert found.slow_groups == ()


def test_a_group_at_a_fraction_of_its_fabric_is_slow() -> None:
    found = job({"0": 40.0}, {"0": tuple(range(8))})
    assert found is not None
    assert found.worst_efficiency == pytest.approx(40.0 / 330.0)
    assert found.slow_groups == ("0",)


def test_groups_across_nodes_are_compared_with_their_best_like() -> None:
    groups = {f"dp{k}": (k, k + 2, k + 4, k + 6) for k in range(2)}
    found = job({"dp0": 45.0, "dp1": 12.0}, groups, hosts=4)
    assert found is not None
    assert found.slow_groups == ("dp1",)
    assert found.worst_efficiency == pytest.approx(12 / 45)
    assert set(found.table["basis"].to_list()) == {"best of 2 groups alike in this job"}


def test_one_group_across_nodes_has_no_expectation() -> None:
    found = job({"0": 5.0}, {"0": tuple(range(8))}, hosts=2)
    assert found is not None
    assert found.table["expected_gbps"].to_list() == [None]
    assert (found.worst_efficiency, found.slow_groups) == (None, ())


def test_groups_laid_out_differently_are_not_compared() -> None:
    found = job({"near": 300.0, "far": 20.0}, {"near": (0, 1), "far": (2, 4)}, hosts=None, device=None)
    assert found is not None
    assert found.worst_efficiency is None


def test_neighbouring_ranks_on_different_devices_share_a_node_although_no_host_is_named() -> None:
    found = job({"0": 40.0}, {"0": tuple(range(8))}, hosts=None, local_devices=True)
    assert found is not None
    assert found.slow_groups == ("0",)


def test_two_transfers_at_once_share_the_links_and_are_not_judged() -> None:
    builder = RunBuilder(world_size=2)
    for step in range(5):
        for rank in (0, 1):
            builder.rank(rank).step(step, 1000 * step, 900)
            for group in ("a", "b"):
                builder.collective("all_reduce", 1000 * step + 10, 500, bytes_in=GIB, group_size=2, group=group)
    run = builder.build()
    acts, windows = activity(run), every_step_steady(run)
    assert links(run, job_facts(run), match(run, windows, acts)) is None


def test_unknown_hosts_accuse_nobody_by_the_fabric() -> None:
    found = job({"0": 40.0}, {"0": tuple(range(8))}, hosts=None)
    assert found is not None
    assert found.worst_efficiency is None


@pytest.mark.parametrize("device", ["NVIDIA H100 PCIe", "NVIDIA L40S", "Tesla T4", "Some Future Chip", None])
def test_parts_without_a_fixed_fabric_have_no_expectation(device: str | None) -> None:
    found = job({"0": 10.0}, {"0": tuple(range(8))}, device=device)
    assert found is not None
    assert found.worst_efficiency is None


def test_small_messages_are_not_judged() -> None:
    assert job({"0": 5.0}, {"0": tuple(range(8))}, size=1 << 20) is None


def test_messages_that_latency_may_rule_are_not_judged() -> None:
    # 8 MiB in 0.16 ms is what a healthy A100 node measures, at two fifths of its bandwidth.
    assert job({"0": 90.0}, {"0": tuple(range(8))}, size=8 << 20, device="NVIDIA A100-SXM4-80GB") is None


def test_medium_messages_that_take_milliseconds_are_judged() -> None:
    found = job({"0": 8.0}, {"0": tuple(range(8))}, size=25 << 20)
    assert found is not None
    assert found.slow_groups == ("0",)


def test_missing_members_may_hide_waiting_so_nothing_is_judged() -> None:
    assert job({"0": 40.0}, {"0": tuple(range(8))}, traced=tuple(range(7))) is None


def test_host_timed_traffic_is_not_judged() -> None:
    builder = RunBuilder(world_size=1).step(0, 0, 100)
    builder.collective("all_reduce", 10, 50, bytes_in=GIB, group_size=1, source="host")
    run = builder.build()
    acts, windows = activity(run), every_step_steady(run)
    assert links(run, job_facts(run), match(run, windows, acts)) is None


@pytest.mark.parametrize(
    ("device", "size", "low", "high"),
    [
        ("NVIDIA A100-SXM4-80GB", 8, 190, 240),
        ("NVIDIA A100-PG509-200", 4, 190, 240),
        ("NVIDIA H100 80GB HBM3", 8, 280, 380),
        ("NVIDIA H200", 2, 280, 380),
        ("NVIDIA B200", 8, 500, 800),
        ("NVIDIA GB200", 4, 500, 800),
        ("Tesla V100-SXM2-32GB", 8, 90, 135),
        ("AMD Instinct MI300X", 8, 250, 350),
    ],
)
def test_ceilings_are_what_healthy_machines_measure(device: str, size: int, low: float, high: float) -> None:
    found = expected_gbps(device, size)
    assert found is not None
    assert low <= found[0] <= high


@pytest.mark.parametrize(
    ("device", "size"), [("Tesla V100-SXM2-32GB", 2), ("AMD Instinct MI300X", 4), ("NVIDIA H100 80GB HBM3", 16)]
)
def test_no_ceiling_where_the_wiring_decides(device: str, size: int) -> None:
    assert expected_gbps(device, size) is None


@pytest.mark.parametrize("op", ["allreduce", "allgather", "reducescatter"])
def test_measured_nccl_tests_of_a_healthy_a100_node_are_efficient(op: str) -> None:
    lines = shared_data("microsoft+superbenchmark", f"nccl_{op}.log").read_text().splitlines()
    largest = next(line.split() for line in lines if line.split()[:1] == ["8589934592"])
    fabric = fabric_of("NVIDIA A100-SXM4-40GB")
    assert fabric is not None
    assert 0.95 < float(largest[-2]) / fabric.busbw_gbps < 1.1
