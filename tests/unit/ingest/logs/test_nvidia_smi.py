"""What nvidia-smi prints: the table, -q in the words of old and new drivers, CSV queries, topology, NVLink, dmon."""

from __future__ import annotations

import pytest

from ddiag.ingest.logs.line import LogParser
from ddiag.ingest.logs.nvidia_smi_csv import NvidiaSmiCsv
from ddiag.ingest.logs.nvidia_smi_links import NvidiaSmiLinks
from ddiag.ingest.logs.nvidia_smi_query import NvidiaSmiQuery
from ddiag.ingest.logs.nvidia_smi_table import NvidiaSmiTable
from ddiag.model.incident import NodeFact
from ddiag.model.node_fact_keys import NODE_FACT_KEYS
from tests.unit.ingest.logs.seen import events, seen

FAMILIES = tuple(key for key in NODE_FACT_KEYS if key.endswith("."))


def facts(text: str, parser: type[LogParser]) -> list[tuple[str | None, str, str | float]]:
    """(device, key, number or text); every key must be declared."""
    found = [one for one in seen(text, parser) if isinstance(one, NodeFact)]
    assert not [one.key for one in found if one.key not in NODE_FACT_KEYS and not one.key.startswith(FAMILIES)]
    return [(one.device, one.key, one.text if one.number is None else one.number) for one in found]


TABLE = """
| NVIDIA-SMI 535.183.01             Driver Version: 535.183.01   CUDA Version: 12.2     |
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
|   3  NVIDIA A100-SXM4-80GB          On  | 00000000:4E:00.0 Off |                    0 |
| N/A   64C    P0             288W / 400W |  61234MiB / 81920MiB |     97%      Default |
|    3   N/A  N/A      4711      C   /opt/conda/bin/python                     61000MiB |
"""


def test_the_table_of_gpus_and_processes() -> None:
    found = facts(TABLE, NvidiaSmiTable)
    assert ("gpu3", "gpu.bus_id", "0000:4e:00.0") in found
    for key, value in (
        ("gpu.utilization_pct", 97.0), ("gpu.power_w", 288.0), ("gpu.power_limit_w", 400.0),
        ("gpu.temperature_c", 64.0),
        ("gpu.memory_used_mib", 61234.0), ("gpu.process", 61000.0), ("gpu.pstate", "P0"),
    ):  # fmt: skip
        assert ("gpu3", key, value) in found
    assert (None, "gpu.driver_version", "535.183.01") in found


def test_a_fan_is_no_utilisation() -> None:
    text = (
        "|   0  NVIDIA GeForce RTX 3090        Off | 00000000:0A:00.0 Off |                  N/A |\n"
        "| 30%   52C    P2             255W / 350W |  10000MiB / 24576MiB |     91%      Default |\n"
    )
    assert [value for _, key, value in facts(text, NvidiaSmiTable) if key == "gpu.utilization_pct"] == [91.0]


@pytest.mark.parametrize(
    ("line", "what", "bus_id"),
    [
        (
            "Unable to determine the device handle for GPU 0000:C1:00.0: GPU is lost.  Reboot the system to recover",
            "lost", "0000:c1:00.0",
        ),
        ("Unable to determine the device handle for GPU0000:C1:00.0: Unknown Error", "unknown_error", "0000:c1:00.0"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver_mismatch", None),
        ("No devices were found", "no_devices", None),
    ],
)  # fmt: skip
def test_errors_of_the_tool(line: str, what: str, bus_id: str | None) -> None:
    (event,) = events(line, NvidiaSmiTable)
    assert (event.get("what"), event.get("bus_id")) == (what, bus_id)


@pytest.mark.parametrize("header", ["Clocks Throttle Reasons", "Clocks Event Reasons"])
def test_reasons_of_old_and_new_drivers(header: str) -> None:
    text = f"""GPU 00000000:81:00.0
    {header}
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    Sync Boost
"""
    active = {key for device, key, value in facts(text, NvidiaSmiQuery) if value == 1.0}
    assert active == {"gpu.throttle.sw_power_cap", "gpu.throttle.hw_slowdown", "gpu.throttle.hw_thermal_slowdown"}


def test_sections_belong_to_the_gpu_before_them() -> None:
    text = """GPU 00000000:3B:00.0
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 2
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Fabric
        State                             : In Progress
        Status                            : N/A
    Processes
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 5555
            Type                          : C
            Name                          : python3
            Used GPU Memory               : 70312 MiB
"""
    found = facts(text, NvidiaSmiQuery)
    assert {device for device, _, _ in found} == {"0000:3b:00.0"}
    for key, value in (
        ("gpu.pcie.gen", 1.0), ("gpu.pcie.gen_max", 4.0), ("gpu.pcie.width", 8.0), ("gpu.pcie.width_max", 16.0),
        ("gpu.ecc.remap_pending", 1.0), ("gpu.ecc.remap_failed", 0.0), ("gpu.fabric.state", "In Progress"),
        ("gpu.process", 70312.0),
    ):  # fmt: skip
        assert ("0000:3b:00.0", key, value) in found


def test_rows_of_a_query_with_and_without_units_and_blanks() -> None:
    spaced = "index, pci.bus_id, clocks.sm [MHz], utilization.gpu [%]\n1, 00000000:2A:00.0, 1410 MHz, 97 %\n"
    bare = "index,pci.bus_id,clocks.sm,utilization.gpu\n1,00000000:2A:00.0,1410,97\n"
    assert facts(spaced, NvidiaSmiCsv) == facts(bare, NvidiaSmiCsv)
    assert ("gpu1", "gpu.clock.sm_mhz", 1410.0) in facts(bare, NvidiaSmiCsv)


@pytest.mark.parametrize("field", ["clocks_throttle_reasons.active", "clocks_event_reasons.active"])
def test_a_mask_of_reasons(field: str) -> None:
    found = facts(f"index, {field}\n0, 0x0000000000000060\n", NvidiaSmiCsv)
    active = {key for _, key, value in found if value == 1.0}
    assert active == {"gpu.throttle.hw_thermal_slowdown", "gpu.throttle.sw_thermal_slowdown"}


def test_a_comma_in_prose_is_no_header() -> None:
    assert facts("we set clocks.sm and power.draw, then index, and so on\n1, 2, 3\n", NvidiaSmiCsv) == []


def test_the_topology_with_underlined_header_and_legend() -> None:
    text = (
        "\x1b[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
        "GPU0\t X \tNV12\tPXB\t0-31\t0\nGPU1\tNV12\t X \tSYS\t32-63\t1\nNIC0\tPXB\tSYS\t X \n\nNIC Legend:\n\n"
        "  NIC0: mlx5_2\n"
    )
    found = facts(text, NvidiaSmiLinks)
    for row in (
        ("gpu0", "gpu.link", "gpu1=NV12"),
        ("gpu0", "gpu.link", "mlx5_2=PXB"),
        ("gpu1", "gpu.cpu_affinity", "32-63"),
    ):
        assert row in [(device, key, fact) for device, key, fact in texts(text)], found


def texts(text: str) -> list[tuple[str | None, str, str]]:
    return [(one.device, one.key, one.text) for one in seen(text, NvidiaSmiLinks) if isinstance(one, NodeFact)]


def test_nvlink_states_and_counters() -> None:
    text = (
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
        "GPU 1: NVIDIA H100 (UUID: GPU-2)\n\t Link 0: Replay Errors: 7\n\t Link 0: Recovery Errors: 2\n"
    )
    assert facts(text, NvidiaSmiLinks) == [
        ("gpu0", "gpu.nvlink.0.gbs", 26.562),
        ("gpu0", "gpu.nvlink.1.gbs", 0.0),
        ("gpu1", "gpu.nvlink.0.replay_errors", 7.0),
        ("gpu1", "gpu.nvlink.0.recovery_errors", 2.0),
    ]


def test_the_monitor() -> None:
    text = (
        "# gpu   pwr gtemp mtemp    sm   mem  mclk  pclk\n"
        "# Idx     W     C     C     %     %   MHz   MHz\n"
        "    2    71    44     -   100     0  1593  1410\n"
    )
    found = facts(text, NvidiaSmiLinks)
    assert ("gpu2", "gpu.power_w", 71.0) in found
    assert ("gpu2", "gpu.utilization_pct", 100.0) in found
