"""Traffic over the links of devices, and memory of hosts, as their samples tell them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddiag.analysis.families import derive
from ddiag.api import diagnose, load
from ddiag.model.run import Run
from ddiag.model.signals_sampled import HostLink, HostMemory
from ddiag.rulekit import Severity
from tests.unit.analysis.sampling import GIB, H100, Node, found, recorded

GB = 10**9
ON_DEVICE: dict[str, Any] = {"device_bytes": 8 * GIB, "reserved_bytes": 9 * GIB}
LASTS_S = 2.4
"""From the first sample to the last."""


def traffic(received: float, sent: float, util: int = 40, **more: Any) -> dict[str, Any]:
    """GB/s over the link to the host; NVLink is busy as well, so that collectives do not use it."""
    nvlink = {"nvlink_tx_bytes": (0, 20 * GB), "nvlink_rx_bytes": (0, 20 * GB)}
    counted = {"pcie_rx_bytes": (5, round(received * LASTS_S * GB)), "pcie_tx_bytes": (0, round(sent * LASTS_S * GB))}
    return {"util": util, **counted, **nvlink, **more}


def link(run: Run) -> list[dict[str, Any]]:
    signals = derive(run).get(HostLink)
    assert signals is not None
    return list(signals.table.to_dicts())


def test_a_link_that_is_full_all_the_time(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", Node(device=(traffic(48, 2), traffic(46, 2))), **ON_DEVICE)
    seen = found(run)["DD1004"]
    assert "gpu0, gpu1 is full: 48 GB/s to the device" in seen.title
    assert seen.severity is Severity.CRITICAL
    first = link(run)[0]
    assert (first["ranks"], first["link_gbps"]) == ([0], pytest.approx(63, abs=0.1))
    assert first["nvlink_gbps"] == pytest.approx(40 / LASTS_S, rel=0.05)


def test_half_as_many_lanes_are_full_at_half_the_rate_and_said_to_be_the_cause(tmp_path: Path) -> None:
    """The device waits for its link most of the time: it is the link that is busy."""
    node = Node(device=(traffic(2, 1), traffic(24, 2, util=20, pcie_width=8)))
    diagnosis = diagnose(recorded(tmp_path / "run", node, **ON_DEVICE))
    full = next(one for one in diagnosis.findings if one.rule == "DD1004")
    assert full.culprits.ranks == (1,)
    assert "DD703" in {one.rule for one in diagnosis.findings}


@pytest.mark.parametrize(
    "devices",
    [
        (traffic(24, 2), traffic(48, 2, util=95)),  # half of it, hidden behind compute
        ({"util": 40}, {"util": 40, "pcie_rx_bytes": (0, 200 * GB)}),  # not counted, one direction only
    ],
)
def test_links_with_room_or_hidden_or_unknown_are_quiet(tmp_path: Path, devices: tuple[dict[str, Any], ...]) -> None:
    assert "DD1004" not in found(recorded(tmp_path / "run", Node(device=devices), **ON_DEVICE))


def test_older_drivers_tell_rates_of_moments(tmp_path: Path) -> None:
    moment = {"util": 30, "pcie_rx_kbps": 50_000_000, "pcie_tx_kbps": 1_000_000}
    links = {"nvlink_tx_bytes": (0, 20 * GB), "nvlink_rx_bytes": (0, 20 * GB)}
    run = recorded(tmp_path / "run", Node(device=({**moment, **links}, {})), **ON_DEVICE)
    assert "50 GB/s to the device" in found(run)["DD1004"].title


def test_without_nvlink_it_is_not_told_from_collectives(tmp_path: Path) -> None:
    plain = {name: value for name, value in traffic(48, 2).items() if not name.startswith("nvlink")}
    diagnosis = diagnose(recorded(tmp_path / "run", Node(device=(plain, plain)), **ON_DEVICE))
    assert "DD1004" not in {one.rule for one in diagnosis.findings}
    assert any(one.rule == "DD1004" and "collectives" in one.needs[0] for one in diagnosis.abstentions)


# -- memory of hosts -----------------------------------------------------------------------------------------------


def held(used: int | tuple[int, int], total: int = 100, group: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """GiB in use on the host, and of its control group."""
    free = tuple((total - one) * GIB for one in used) if isinstance(used, tuple) else (total - used) * GIB
    told: dict[str, Any] = {"memory": {"total_bytes": total * GIB, "available_bytes": free, "swap_used_bytes": 0}}
    if group:
        told["cgroup"] = {f"memory_{name}bytes": value for name, value in group.items()}
    return told


def host(run: Run) -> dict[str, Any]:
    signals = derive(run).get(HostMemory)
    assert signals is not None
    return dict(signals.table.row(0, named=True))


def test_a_host_that_the_job_fills(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", Node(each=held((30, 97)), rss=(20 * GIB, 75 * GIB)))
    seen = found(run)["DD650"]
    assert "nearly full on node0: 97 GiB of 100 GiB, all that it has" in seen.title
    assert seen.culprits.hosts == ("node0",)
    told = host(run)
    assert (told["limit"], told["job_bytes"], told["largest_rank"]) == ("host", 95 * GIB, 1)


def test_a_group_that_is_full_on_a_host_that_is_not(tmp_path: Path) -> None:
    group = held(30, group={"": (10 * GIB, 31 * GIB), "limit_": 32 * GIB, "cached_": GIB // 2})
    seen = found(recorded(tmp_path / "run", Node(each=group, rss=(14 * GIB, 14 * GIB))))["DD650"]
    assert "30.5 GiB of 32 GiB, the limit of its control group" in seen.title


@pytest.mark.parametrize(
    "each",
    [
        held(90, group={"": 31 * GIB, "limit_": 32 * GIB, "cached_": 6 * GIB}),  # room on the host, cache in the group
        {"memory": {"available_bytes": GIB}, "cgroup": {"memory_bytes": 31 * GIB}},  # of what, nobody knows
    ],
)
def test_room_cache_and_what_is_not_known_are_quiet(tmp_path: Path, each: Mapping[str, Any]) -> None:
    assert "DD650" not in found(recorded(tmp_path / "run", Node(each=each)))


def test_each_host_is_measured_by_its_own_samples(tmp_path: Path) -> None:
    """The second has no devices; the first's link is as full there as alone."""
    first = Node(users=(100,), devices=(H100,), device=(traffic(48, 2),), each=held(40), ranks=(0,))
    second = Node(host="node1", users=(), devices=(), each=held((20, 62), total=64), ranks=(1,))
    run = recorded(tmp_path / "run", first, second, **ON_DEVICE)
    seen = found(run)
    assert seen["DD650"].culprits.hosts == ("node1",)
    assert (seen["DD1004"].culprits.hosts, seen["DD1004"].culprits.ranks) == (("node0",), (0,))


# -- offloading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pinned", "speaks"), [(False, True), (True, False)])
def test_copies_of_state_that_deepspeed_was_told_not_to_pin(tmp_path: Path, pinned: bool, speaks: bool) -> None:
    folder = tmp_path / "run"
    recorded(folder, Node(), **ON_DEVICE, offload_ms=12.0)
    engine = {"kind": "deepspeed", "version": "0.19.0", "zero_optimization_stage": 2,
              "zero_offload_optimizer": {"device": "cpu", "pin_memory": pinned}}  # fmt: skip
    for facts in (folder / "ranks" / "a0").glob("*.facts.jsonl"):
        with facts.open("a") as file:
            file.write(json.dumps(engine) + "\n")
    seen = found(load([str(folder)]))
    assert ("DD1003" in seen) == speaks
    if speaks:
        assert "offload_optimizer.pin_memory is false" in seen["DD1003"].title
        assert seen["DD1003"].cost.ms_per_step == pytest.approx(12.0, rel=0.1)
