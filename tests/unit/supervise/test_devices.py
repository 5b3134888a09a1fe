"""Devices through a library compiled here: every call crosses the real wire (pynvml, ctypes, C)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ddiag.errors import InputError
from ddiag.ingest.node_samples import read_samples as from_file
from ddiag.ingest.sampled_devices import told
from ddiag.model.incident import Event, NodeFact
from ddiag.schema.samples import DEVICE_FIELDS, read_samples
from tests.integration.running import PYTHON, eventually, only_run, recorded, start
from tests.unit.supervise.conftest import StubbedDevices

HEALTHY: dict[str, object] = {
    "driver": "570.86.15",
    "count": 2,
    "_0__name": "NVIDIA H100 80GB HBM3",
    "_0__uuid": "GPU-0",
    "_0__memory": 80 << 30,
    "_0__used": 30 << 30,
    "_0__util": 97,
    "_0__mem_util": 41,
    "_0__sm": 1980,
    "_0__mem_clock": 2619,
    "_0__max_sm": 1980,
    "_0__reasons": 0x40,
    "_0__power": 654321,
    "_0__energy": 123456,
    "_0__temp": 61,
    "_0__pcie_gen": 5,
    "_0__pcie_width": 8,
    "_0__max_pcie_gen": 5,
    "_0__max_pcie_width": 16,
    "_0__replays": 3,
    "_0__field197.0": 1000,
    "_0__field198.0": 2000,
    "_0__field138.4294967295": 10,
    "_0__field139.4294967295": 20,
    "_0__ecc_corrected": 4,
    "_0__ecc_uncorrected": 1,
    "_0__remapped": 2,
    "_0__violation_ns": 5_000_000,
    "_0__pid": 4242,
    "_0__numa": 1,
    "_0__cpus_near": 0xF0F,
    "_0__remap_pending": 1,
}

READ = """
import json, sys
from ddiag.supervise.devices import Devices
devices = Devices()
found = {"facts": devices.facts(), "software": devices.software(), "read": devices.read()}
print(json.dumps({**found, "events": devices.events()}))
"""


def _read(stubbed: StubbedDevices, **values: object) -> dict[str, Any]:
    stubbed.write(**{**HEALTHY, **values})
    found: dict[str, Any] = json.loads(stubbed.python(READ))
    return found


def test_what_a_device_tells_is_read_in_our_units(stubbed: StubbedDevices) -> None:
    first = _read(stubbed)["read"][0]
    assert first == {
        "util": 97,
        "mem_util": 41,
        "sm_mhz": 1980,
        "mem_mhz": 2619,
        "reasons": 0x40,
        "power_w": 654.3,
        "energy_mj": 123456,
        "temp_c": 61,
        "used_bytes": 30 << 30,
        "pcie_gen": 5,
        "pcie_width": 8,
        "pcie_replays": 3,
        "pcie_tx_bytes": 1000,
        "pcie_rx_bytes": 2000,
        "nvlink_tx_bytes": 10 * 1024,
        "nvlink_rx_bytes": 20 * 1024,
        "ecc_corrected": 4,
        "ecc_uncorrected": 1,
        "remapped_rows": [0, 2, 1, 0],
        "throttled_us": [5000, 0, 0, 0],
    }
    assert set(first) <= set(DEVICE_FIELDS)


def test_what_does_not_change_is_told_once(stubbed: StubbedDevices) -> None:
    found = _read(stubbed)
    assert found["software"]["driver"] == "570.86.15"
    facts = found["facts"][0]
    assert facts["name"] == "NVIDIA H100 80GB HBM3"
    assert (facts["max_pcie_gen"], facts["max_pcie_width"]) == (5, 16)
    assert facts["memory_bytes"] == 80 << 30
    assert (facts["numa_node"], facts["cpus_near"]) == (1, "0-3,8-11")


def test_what_a_device_does_not_support_is_absent_not_zero(stubbed: StubbedDevices) -> None:
    """Device 1 of the stub tells nothing but its violation times."""
    assert set(_read(stubbed)["read"][1]) <= {"throttled_us"}


def test_without_cumulative_counters_pcie_is_a_rate(stubbed: StubbedDevices) -> None:
    values: dict[str, object] = {"_0__field197.0": "unsupported", "_0__field198.0": "unsupported"}
    code = READ.replace("devices.read()", "[devices.read(), devices.read()][-1]")
    stubbed.write(**{**HEALTHY, **values, "_0__tx_kbps": 7, "_0__rx_kbps": 9})
    first = json.loads(stubbed.python(code))["read"][0]
    assert (first["pcie_tx_kbps"], first["pcie_rx_kbps"]) == (7, 9)
    assert "pcie_tx_bytes" not in first


def test_a_lost_device_is_trouble_and_the_rest_is_still_read(stubbed: StubbedDevices) -> None:
    found = _read(stubbed, _0__temp="lost")
    assert "temp_c" not in found["read"][0]
    assert found["read"][0]["util"] == 97
    assert found["events"][0]["kind"] == "device_trouble"
    assert "temp_c: GPU is lost" in found["events"][0]["what"]


def test_xids_and_the_processes_of_a_device_are_events(stubbed: StubbedDevices) -> None:
    found = _read(stubbed, xid="1 79")
    assert {"kind": "xid", "device": 1, "xid": 79} in found["events"]
    assert {"kind": "device_processes", "device": 0, "pids": [4242]} in found["events"]


LINKS: dict[str, object] = {
    "_0__nvlink0": 1,
    "_0__nvlink1": 1,
    "_0__nvlink2": 0,
    "_0__nvlink_version": 4,
    "_0__nvlink0_replay": 5,
    "_0__nvlink0_recovery": 0,
    "_0__nvlink0_crc_data": 1,
    "_0__nvlink1_recovery": 2,
    "_0__field214.1": 3,
}


def test_nvlinks_tell_which_are_up_and_what_they_count(stubbed: StubbedDevices) -> None:
    (told,) = [event for event in _read(stubbed, **LINKS)["events"] if event["kind"] == "nvlinks"]
    assert told["device"] == 0
    counted = {"replay_errors": 5, "recovery_errors": 0, "crc_data_errors": 1}
    assert told["links"] == [
        {"link": 0, "active": 1, "version": 4, **counted},
        {"link": 1, "active": 1, "version": 4, "recovery_errors": 2, "failed_recovery_errors": 3},
        {"link": 2, "active": 0},
    ]


def test_nvlinks_are_told_again_only_when_they_change(stubbed: StubbedDevices) -> None:
    """Seventy samples: a counter rises at the fortieth and is seen within thirty, once."""
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom ddiag.supervise.devices import Devices\n"
        "devices, told = Devices(), []\n"
        "for number in range(70):\n"
        "    if number == 40:\n"
        "        values = Path(sys.argv[1])\n"
        "        values.write_text(values.read_text().replace('nvlink0_recovery 0', 'nvlink0_recovery 7'))\n"
        "    devices.read()\n"
        "    told += [(number, event) for event in devices.events() if event['kind'] == 'nvlinks']\n"
        "print(json.dumps([(number, event['links'][0]['recovery_errors']) for number, event in told]))\n"
    )
    stubbed.write(**{**HEALTHY, **LINKS})
    first, second = json.loads(stubbed.python(code, str(stubbed.values)))
    assert first == [0, 0]
    assert second[1] == 7
    assert 40 <= second[0] < 70


def test_no_device_is_said_not_raised(stubbed: StubbedDevices) -> None:
    stubbed.write(count=0)
    code = "from ddiag.supervise.devices import *\ntry: Devices()\nexcept NoDevicesError as error: print(error)"
    assert stubbed.python(code) == "NVML shows no device\n"


def test_a_run_samples_devices_while_they_change(stubbed: StubbedDevices, tmp_path: Path) -> None:
    """The whole chain: ddiag run, its sampler, values that change, an XID, the file."""
    stubbed.write(**{**HEALTHY, **LINKS, "_0__temp": 50})
    command = [*recorded(tmp_path / "runs", "--sample-interval", "0.1", "--no-report"), PYTHON, "-c", "input()"]
    with start(command, stdin=-1, env=stubbed.environment) as process:
        assert process.stdin is not None
        samples = eventually(lambda: next(iter((tmp_path / "runs").glob("*/nodes/*.samples")), None))
        eventually(lambda: 50 in _temperatures(samples))
        stubbed.write(**{**HEALTHY, **LINKS, "_0__temp": 93, "xid": "0 48"})
        eventually(lambda: 93 in _temperatures(samples))
        process.communicate(b"\n")
    header, lines = read_samples(next((only_run(tmp_path / "runs") / "nodes").glob("*.samples")))
    kinds = [line["kind"] for line in lines]
    assert header["interval_s"] == 0.1
    assert kinds[0] == "devices"
    assert kinds[-1] == "end"
    assert "xid" in kinds
    _told_to_the_rules(next((only_run(tmp_path / "runs") / "nodes").glob("*.samples")))


def _told_to_the_rules(samples: Path) -> None:
    """What the stub said comes out at the other end as facts and events."""
    seen = list(told(from_file(samples.read_bytes(), source="samples")))
    facts = {(one.device, one.key): one.text for one in seen if isinstance(one, NodeFact)}
    assert facts["gpu0", "gpu.ecc.remap_pending"] == "Yes"
    assert facts["gpu0", "gpu.ecc.remap_failed"] == "No"
    assert facts["gpu0", "gpu.cpu_affinity"] == "0-3,8-11"
    assert facts["gpu0", "gpu.nvlink.1.gbs"] == "25.0 GB/s"
    assert facts["gpu0", "gpu.nvlink.2.gbs"] == "<inactive>"
    assert [one.get("code") for one in seen if isinstance(one, Event)] == [48]


def _temperatures(samples: Path) -> list[int]:
    try:
        _, lines = read_samples(samples)
    except (OSError, InputError):
        return []  # not there yet, or its first line is being written
    return [line["devices"][0]["temp_c"] for line in lines if line["kind"] == "sample" and "devices" in line]


@pytest.mark.slow
def test_the_sampler_stays_within_its_share_of_a_core(stubbed: StubbedDevices, tmp_path: Path) -> None:
    """Asked for 100 samples a second, it takes what one percent of a core allows."""
    stubbed.write(**HEALTHY)
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom ddiag.supervise import sampler\n"
        "watched = sampler.Watched(Path(sys.argv[1]), 'here', os.getpid(), 0.01)\n"
        "pid = sampler.start_sampler(watched)\ntime.sleep(6)\n"
        "words = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()\n"
        "print((int(words[11]) + int(words[12])) / os.sysconf('SC_CLK_TCK'))\n"
        "sampler.stop_sampler(pid)\n"
    )
    (tmp_path / "run" / "nodes").mkdir(parents=True)
    (tmp_path / "run" / "ranks").mkdir()
    began = time.monotonic()
    used_s = float(stubbed.python(code, str(tmp_path / "run")))
    start_s = 0.15
    assert used_s <= 0.012 * (time.monotonic() - began) + start_s
