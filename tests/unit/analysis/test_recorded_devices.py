"""What the sampler writes of devices, ends and searches becomes tables, and the right findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddiag.api import diagnose, load
from ddiag.model.run import Run
from ddiag.rulekit.diagnosis import Diagnosis
from ddiag.schema.samples import encode, header
from tests.recordings import WALL_NS, healthy, write_run

FACTS = {"name": "NVIDIA H100", "max_pcie_gen": 5, "max_pcie_width": 16, "max_sm_mhz": 1980}
WELL = {"util": 98, "reasons": 0x4, "sm_mhz": 1900, "pcie_gen": 5, "pcie_width": 16}


class Sampled:
    """A healthy run of two ranks, on node0 with two devices; *second* is what every sample says of the second."""

    def __init__(self, folder: Path) -> None:
        self.run = write_run(folder, *healthy(steps=12))
        buses = ("00000000:3B:00.0", "00000000:5E:00.0")
        devices = [{**FACTS, "bus_id": bus} for bus in buses]
        self.lines: list[dict[str, Any]] = [
            header(host="node0", wall_ns=WALL_NS, interval_s=0.1, cpus=16),
            {"t": WALL_NS, "kind": "devices", "devices": devices},
            {"t": WALL_NS, "kind": "device_processes", "device": 0, "pids": [100]},
            {"t": WALL_NS, "kind": "device_processes", "device": 1, "pids": [101, 999]},
        ]

    def read(self, second: dict[str, Any] | None = None, *more: dict[str, Any]) -> Run:
        for number in range(13):
            row = [[100 + rank, rank, number * 10**8, 1 << 30, 8, "R", rank, 0, 0, 0, 0, 0] for rank in (0, 1)]
            sample = {"devices": [WELL, WELL | (second or {})], "ranks": row, "cpu": {"running": 3}}
            self.lines.append({"t": WALL_NS + number * 10**8, "kind": "sample", **sample})
        data = b"".join(encode(line) for line in [*self.lines, *more])
        (self.run / "nodes").mkdir(exist_ok=True)
        (self.run / "nodes" / "node0.samples").write_bytes(data)
        return load([str(self.run)])


@pytest.fixture
def sampled(tmp_path: Path) -> Sampled:
    return Sampled(tmp_path / "run")


def found(run: Run) -> dict[str, Any]:
    diagnosis: Diagnosis = diagnose(run)
    return {finding.rule: finding for finding in diagnosis.findings}


def test_devices_are_known_with_the_ranks_that_use_them(sampled: Sampled) -> None:
    devices = sampled.read().table("devices")
    assert devices["ranks"].to_list() == [[0], [1]]
    assert devices["bus_id"].to_list() == ["0000:3b:00.0", "0000:5e:00.0"]


def test_devices_at_their_best_are_left_in_peace(sampled: Sampled) -> None:
    assert not set(found(sampled.read())) & {"DD702", "DD703", "DD604", "DD907", "DD933"}


def test_a_hot_device_and_a_narrow_link(sampled: Sampled) -> None:
    seen = found(sampled.read({"reasons": 0x40, "sm_mhz": 1000, "pcie_width": 8}))
    assert seen["DD702"].culprits.ranks == (1,)
    assert seen["DD702"].culprits.devices == ("gpu1",)
    assert "x8 of x16" in seen["DD703"].title


def test_an_idle_devices_clock_and_link_mean_nothing(sampled: Sampled) -> None:
    seen = found(sampled.read({"util": 0, "reasons": 0x41, "sm_mhz": 200, "pcie_gen": 1}))
    assert not set(seen) & {"DD702", "DD703"}


def test_a_fault_the_driver_reported_is_an_event_like_that_of_a_kernel_log(sampled: Sampled) -> None:
    run = sampled.read(None, {"t": WALL_NS + 5, "kind": "xid", "device": 1, "xid": 79})
    (event,) = run.table("log_events").filter(kind="kernel.xid").to_dicts()
    assert json.loads(event["fields"]) == {"code": 79, "bus_id": "0000:5e:00.0"}
    assert (event["host"], event["ts_ns"]) == ("node0", WALL_NS + 5)
    assert found(run)["DD907"].state.value == "crashed"


def test_ends_are_joined_to_their_ranks(sampled: Sampled) -> None:
    killed = {"t": WALL_NS, "kind": "exit", "at": WALL_NS + 7, "pid": 101, "rank": 1, "signal": 9}
    left = {"t": WALL_NS, "kind": "exit", "at": WALL_NS + 9, "pid": 100, "rank": 0}
    rows = sampled.read(None, killed, left).table("exits").sort("rank").to_dicts()
    assert [(row["signal"], row["exit_code"], row["end_ns"]) for row in rows] == [
        (None, None, WALL_NS + 9),
        (9, None, WALL_NS + 7),
    ]


def facts(run: Path, rank: int, *told: dict[str, Any]) -> None:
    path = next((run / "ranks" / "a0").glob(f"r{rank:05d}-*.facts.jsonl"))
    with path.open("a") as file:
        file.writelines(json.dumps(fact) + "\n" for fact in told)


def test_an_uncaught_exception_stands_beside_its_end(sampled: Sampled) -> None:
    facts(sampled.run, 0, {"kind": "exception", "type": "KeyError", "message": "'x'", "where": "a.py:3 in f"})
    row = sampled.read().table("exits").sort("rank").row(0, named=True)
    assert (row["exception"], row["message"], row["where"]) == ("KeyError", "'x'", "a.py:3 in f")


def test_a_vain_search_for_unused_parameters_is_told(sampled: Sampled) -> None:
    for rank in (0, 1):
        facts(sampled.run, rank, *({"kind": "ddp_unused", "index": 0, "bytes": 0, "looks": n} for n in (1, 2, 4, 16)))
    assert "in 16 iterations" in found(sampled.read())["DD802"].title


def test_one_find_makes_the_search_worth_it(sampled: Sampled) -> None:
    facts(sampled.run, 0, {"kind": "ddp_unused", "index": 0, "bytes": 4096, "looks": 16})
    facts(sampled.run, 1, {"kind": "ddp_unused", "index": 0, "bytes": 0, "looks": 16})
    assert "DD802" not in found(sampled.read())


@pytest.mark.parametrize(("grown", "speaks"), [(1 << 20, True), (0, False)])
def test_pinned_memory_that_grows(sampled: Sampled, grown: int, speaks: bool) -> None:
    mono = 5_000_000_000_000
    looks = [
        {"kind": "device_memory", "mono_ns": mono + (1 + 100 * step) * 10**6, "pinned_bytes": (1 << 22) + step * grown}
        for step in range(12)
    ]
    facts(sampled.run, 1, *looks)
    seen = found(sampled.read())
    assert ("DD604" in seen) == speaks
    if speaks:
        assert seen["DD604"].culprits.ranks == (1,)


def test_the_last_line_of_facts_may_be_cut_short(sampled: Sampled) -> None:
    facts(sampled.run, 0, {"kind": "exception", "type": "ValueError", "message": "m", "where": None})
    path = next((sampled.run / "ranks" / "a0").glob("r00000-*.facts.jsonl"))
    path.write_bytes(path.read_bytes()[:-3])
    assert sampled.read().table("exits").sort("rank")["exception"][0] is None
