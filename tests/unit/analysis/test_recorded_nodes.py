"""What the sampler saw of nodes: who runs where, broken memory, links that lose data, devices that are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddiag.ingest.node_samples import read_samples
from ddiag.ingest.sampled_devices import told
from ddiag.model.incident import NodeFact
from ddiag.model.run import Run
from ddiag.model.signals_incident import NodeFacts
from ddiag.rulekit import Severity
from ddiag.schema.samples import encode
from tests.recordings import WALL_NS
from tests.rules.checking import findings, the_finding
from tests.unit.analysis.sampling import H100, Node, found, recorded

NEAR = ({**H100, "cpus_near": "0-7"}, {**H100, "cpus_near": "8-15"})
FOUR = (H100,) * 4
OF_NODES = {"DD220", "DD423", "DD702", "DD703", "DD710", "DD907", "DD934", "DD935"}


def bound(*cpus: str) -> tuple[dict[str, Any], ...]:
    return tuple({"kind": "affinity", "pid": 100 + r, "rank": r, "cpus": one} for r, one in enumerate(cpus))


def links(device: int, *given: dict[str, int]) -> dict[str, Any]:
    usual = {"active": 1, "version": 4, "replay_errors": 0, "recovery_errors": 0}
    return {
        "kind": "nvlinks",
        "device": device,
        "links": [{"link": n, **usual, **one} for n, one in enumerate(given or ({}, {}))],
    }


def facts(run: Run, key: str) -> list[tuple[str | None, float | None]]:
    rows = run.table("node_facts").filter(key=key).to_dicts()
    return [(row["device"], row["number"]) for row in rows]


def test_a_node_that_is_well_is_left_in_peace(tmp_path: Path) -> None:
    """Though it has a past (errors of other jobs), boards bridged in pairs, and a repeat or a hiccup now and then."""
    bridged = tuple(links(index, {"recovery_errors": 4}, {"active": 0}) for index in range(2))
    later = links(1, {"recovery_errors": 4, "replay_errors": 3}, {"active": 0})
    odd = {"kind": "device_trouble", "device": 1, "what": "temp_c: Unknown Error"}
    past = {"remapped_rows": [1, 2, 0, 0], "throttled_us": [900, 0, 0, 0], "ecc_uncorrected": 7}
    device = ({**past, "pcie_replays": 3000}, {**past, "pcie_replays": (0, 2)})
    told = (*bound("0-7", "8-15"), *bridged)
    run = recorded(tmp_path / "run", Node(devices=NEAR, told=told, device=device, at_end=(later, odd)))
    assert not set(found(run)) & OF_NODES


def test_ranks_on_the_cpus_of_the_other_socket(tmp_path: Path) -> None:
    crossed = Node(devices=NEAR, told=bound("8-15", "0-7"))
    seen = found(recorded(tmp_path / "run", crossed, device_bytes=1, reserved_bytes=1))["DD220"]
    assert seen.title == "2 processes run on CPUs far from the GPU on host node0"


def test_only_the_one_rank_that_is_far_is_shown(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", Node(devices=NEAR, told=bound("0-7", "0-7")))
    seen = found(run)["DD220"]
    assert [row.label for row in seen.evidence] == ["CPUs of pid 101"]


def test_ranks_bound_to_the_same_few_of_many_cpus(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", Node(told=bound("0-2", "0-2")), device_bytes=1, reserved_bytes=1)
    assert found(run)["DD220"].title == "2 ranks share 3 CPUs on host node0"


@pytest.mark.parametrize(
    ("cpus", "there", "plan"),
    [
        ("0-2", 3, {"device_bytes": 1, "reserved_bytes": 1}),  # all that the host has: no binding
        ("0-1", 16, {}),  # a CPU for each rank that trains on CPUs
        ("0-3", 16, {"device_bytes": 1, "reserved_bytes": 1}),
    ],
)
def test_what_is_no_binding_or_enough(tmp_path: Path, cpus: str, there: int, plan: dict[str, Any]) -> None:
    run = recorded(tmp_path / "run", Node(cpus=there, told=bound(cpus, cpus)), **plan)
    assert "DD220" not in found(run)


def test_rows_that_wait_for_a_reset_and_rows_that_could_not_be_saved(tmp_path: Path) -> None:
    waits = recorded(tmp_path / "a", Node(device=({}, {"remapped_rows": [0, 1, 1, 0]})))
    seen = found(waits)["DD907"]
    assert "has memory errors to be retired" in seen.title
    assert (seen.culprits.ranks, seen.severity) == ((1,), Severity.WARNING)
    failed = recorded(tmp_path / "b", Node(device=({"remapped_rows": [0, 1, 0, 1]}, {})))
    assert found(failed)["DD907"].severity is Severity.CRITICAL


def test_memory_errors_count_when_they_happen_while_the_job_runs(tmp_path: Path) -> None:
    new = recorded(tmp_path / "new", Node(device=({}, {"ecc_uncorrected": (7, 9)})))
    assert facts(new, "gpu.ecc.uncorrectable_new") == [("gpu1", 2.0)]
    assert found(new)["DD907"].culprits.ranks == (1,)


def test_a_device_that_fell_off_the_bus(tmp_path: Path) -> None:
    gone = {"kind": "device_trouble", "device": 1, "what": "temp_c: GPU is lost"}
    run = recorded(tmp_path / "run", Node(at_end=(gone, gone)))
    assert run.table("log_events").filter(kind="kernel.gpu_lost").height == 1
    seen = found(run)["DD907"]
    assert seen.culprits.ranks == (1,)
    assert "cannot be reached any more" in seen.title


def test_nvlinks_that_recover_from_errors_while_the_job_runs(tmp_path: Path) -> None:
    begin, end = links(1, {"recovery_errors": 4}, {}), links(1, {"recovery_errors": 9}, {"replay_errors": 3})
    run = recorded(tmp_path / "run", Node(told=(links(0), begin), at_end=(end,)))
    assert facts(run, "gpu.nvlink.0.recovery_errors") == [("gpu1", 5.0)]
    seen = found(run)["DD934"]
    assert seen.culprits.devices == ("gpu1",)
    assert "had to recover" in seen.title


def test_a_device_that_lacks_links_its_peers_have(tmp_path: Path) -> None:
    told = (links(0), links(1, {}, {"active": 0}), links(2), links(3))
    seen = found(recorded(tmp_path / "run", Node(devices=FOUR, told=told)))["DD934"]
    assert seen.culprits.devices == ("gpu1",)
    assert "1 NVLinks are down that its peers have" in seen.title


def test_a_link_to_the_host_that_repeats_transfers(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", Node(device=({"pcie_replays": 3}, {"pcie_replays": (10, 400)})))
    seen = found(run)["DD703"]
    assert seen.culprits.ranks == (1,)
    assert "repeats" in seen.title


def test_heat_between_the_samples_is_in_the_drivers_own_sum(tmp_path: Path) -> None:
    hot = {"throttled_us": [0, 0, 0, 0], "sm_mhz": 1500}
    node = Node(device=({}, hot))
    lines = node.lines()
    for number, sample in enumerate(line for line in lines if line["kind"] == "sample"):
        sample["devices"][1]["throttled_us"] = [0, 100_000 * number, 0, 0]
    run = recorded(tmp_path / "run", node, lines=lines)
    seen = found(run)["DD702"]
    assert seen.culprits.ranks == (1,)
    assert "50% of the time: too hot" in seen.title


def test_ports_and_what_they_lose_are_facts(tmp_path: Path) -> None:
    port = {"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE", "link_layer": "Ethernet"}
    node = Node(told=({"kind": "ib_ports", "ports": {"mlx5_0/1": port}},))
    lines = node.lines()
    for number, sample in enumerate(line for line in lines if line["kind"] == "sample"):
        sample["ib"] = {"mlx5_0/1": [number, number, 0, 0, 0, 500 + 3 * number, 0, 0, 0, 7]}
    run = recorded(tmp_path / "run", node, lines=lines)
    assert facts(run, "nic.rate_gbps") == [("mlx5_0", 400.0)]
    assert run.table("node_facts").filter(key="nic.state")["text"].to_list() == ["Active"]
    assert facts(run, "nic.counter.out_of_sequence") == [("mlx5_0", 36.0)]
    assert facts(run, "nic.counter.np_cnp_sent") == [("mlx5_0", 0.0)]


def test_the_topology_tells_which_devices_nvlink_joins(tmp_path: Path) -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-7\t0\nGPU1\tNV18\t X \t8-15\t1\n"
    run = recorded(tmp_path / "run", Node(told=({"kind": "topology", "text": text},)))
    rows = run.table("node_facts").filter(key="gpu.link").select("host", "device", "text").rows()
    assert rows == [("node0", "gpu0", "gpu1=NV18"), ("node0", "gpu1", "gpu0=NV18")]


def test_a_fault_is_placed_by_who_was_seen_on_the_device(tmp_path: Path) -> None:
    """Rank 1 on device 0: no assumption about numbers."""
    fault = {"t": WALL_NS + 5, "kind": "xid", "device": 0, "xid": 79}
    run = recorded(tmp_path / "run", Node(users=(101, 100), at_end=(fault,)))
    assert found(run)["DD907"].culprits.ranks == (1,)


def port_facts(host: str, *, out_of_sequence: int) -> list[NodeFact]:
    """Of a node whose port counts so many packets out of order while the job runs."""
    node = Node()
    lines = node.lines()
    lines[0]["host"] = host
    samples = [line for line in lines if line["kind"] == "sample"]
    for number, sample in enumerate(samples):
        counted = 10**6 + out_of_sequence * number // (len(samples) - 1)
        sample["ib"] = {"mlx5_0/1": [number, number, 0, 0, 0, counted, 0, 0, 0, 0]}
    seen = told(read_samples(b"".join(map(encode, lines)), source=host))
    return [one for one in seen if isinstance(one, NodeFact)]


def test_the_port_of_one_node_that_loses_packets() -> None:
    """It is what came while the job ran that counts: before it, all ports had counted a million."""
    usual = [*port_facts("a", out_of_sequence=3), *port_facts("b", out_of_sequence=0)]
    bad = NodeFacts((*usual, *port_facts("c", out_of_sequence=9000)))
    seen = the_finding("DD423", node_facts=bad)
    assert seen.culprits.hosts == ("c",)
    assert "loses packets: out_of_sequence 9,000" in seen.title
    fine = NodeFacts((*usual, *port_facts("c", out_of_sequence=40)))
    assert findings("DD423", node_facts=fine) == []


def test_damaged_lines_and_faults_of_unknown_devices_cost_nothing_else(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"kind": "xid", "device": None, "xid": 79},
        {"kind": "device_trouble", "device": "gpu", "what": "temp_c: GPU is lost"},
        {"kind": "nvlinks", "device": 0, "links": [7, {"link": "x"}]},
        {"kind": "affinity", "pid": "x"},
        {"kind": "ib_ports", "ports": {"mlx5_0/1": 4}},
    ]
    devices = ({**H100, "memory_bytes": {}}, H100)
    node = Node(devices=devices, told=tuple(odd), device=({"remapped_rows": [None]}, {}))
    run = recorded(tmp_path / "run", node, device_bytes=1, reserved_bytes=1)
    assert run.table("ranks").sort("rank")["device_name"].to_list() == [None, H100["name"]]
    assert found(run)["DD907"].culprits.devices == ()
