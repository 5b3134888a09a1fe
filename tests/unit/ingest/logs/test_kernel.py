"""Kernel messages: all forms of Xid lines, and what stands around them."""

from __future__ import annotations

from typing import Any

import pytest

from ddiag.ingest.logs.kernel import KernelLog
from tests.unit.ingest.logs.seen import events


def only(text: str) -> Any:
    (event,) = events(text, KernelLog)
    return event


@pytest.mark.parametrize(
    ("line", "code", "bus_id", "pid", "process"),
    [
        (
            "[1.1] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            79, "0000:3b:00.0", None, None,
        ),
        ("NVRM: Xid (PCI:0001:C1:00): 119, pid=1122, Timeout after 6s", 119, "0001:c1:00.0", 1122, None),
        ("Jun  2 03:11:01 n7 kernel: NVRM: Xid (PCI:0000:19:00): 31, pid=4, name=py, x", 31, "0000:19:00.0", 4, "py"),
        ("NVRM: Xid (PCI:0000:66:00): 43, Ch 00000010", 43, "0000:66:00.0", None, None),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00.0", None, None),
        ("NVRM: Xid (PCI:0000:5e:00): 64, pid='N/A', Row Remapper: Failed", 64, "0000:5e:00.0", None, None),
        ("[Mon Jun  2 03:11:01 2025] NVRM: Xid (PCI:0000:ab:00): 48, pid=7, name=ab, x", 48, "0000:ab:00.0", 7, "ab"),
    ],
)  # fmt: skip
def test_the_code_stands_behind_the_address(
    line: str, code: int, bus_id: str, pid: int | None, process: str | None
) -> None:
    event = only(line)
    assert (event.kind, event.integer("code"), event.get("bus_id")) == ("kernel.xid", code, bus_id)
    assert (event.get("pid"), event.get("process")) == (pid, process)


@pytest.mark.parametrize(
    ("rest", "fatal", "link", "caused_by", "action"),
    [
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", False, 13, None, None),
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406)", True, -1, None, None),
        (
            "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 2(0x1)",
            True,
            2,
            None,
            None,
        ),
        ("45, pid=3, name=python3, Ch 00000001 caused by previous Xid 149", None, None, 149, None),
        (
            "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain)",
            None,
            None,
            None,
            "Drain",
        ),
    ],
)
def test_what_the_driver_adds(
    rest: str, fatal: bool | None, link: int | None, caused_by: int | None, action: str | None
) -> None:
    event = only(f"kernel: NVRM: Xid (PCI:0000:66:00): {rest}")
    found = (event.get("fatal"), event.get("link"), event.get("caused_by"), event.get("action"))
    assert found == (fatal, link, caused_by, action)


def test_an_nvswitch_fault_is_no_xid() -> None:
    event = only("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error")
    assert (event.kind, event.integer("code"), event.get("fatal"), event.get("link")) == (
        "kernel.sxid",
        12028,
        False,
        32,
    )


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg=/k,task_memcg=/k/p,"
            "task=python,pid=1234,uid=0",
            "kernel.oom_killer",
            {"pid": 1234, "constraint": "cgroup", "cgroup": "/k/p"},
        ),
        (
            "Out of memory: Killed process 77 (python3) total-vm:1kB, anon-rss:2048kB, file-rss:0kB",
            "kernel.oom_killer",
            {"pid": 77, "constraint": "host", "rss_bytes": 2 << 20},
        ),
        (
            "Memory cgroup out of memory: Kill process 9 (x) score 1 or sacrifice child\nKilled process 9 (x)",
            "kernel.oom_killer",
            {"pid": 9},
        ),
        (
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
            "kernel.aer",
            {"bus_id": "0000:00:03.0", "severity": "corrected", "layer": "Data Link Layer"},
        ),
        (
            "pcieport 0000:40:01.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (ID)",
            "kernel.aer",
            {"severity": "nonfatal"},
        ),
        ("mlx5_core 0000:17:00.0 ens1: Link down", "kernel.link", {"interface": "ens1", "up": False}),
        ("e1000e 0000:00:1f.6 eno1: NIC Link is Up 1000 Mbps", "kernel.link", {"interface": "eno1", "up": True}),
        ("INFO: task python:123 blocked for more than 120 seconds.", "kernel.hung_task", {"pid": 123, "seconds": 120}),
        ("nfs: server 10.0.0.1 not responding, still trying", "kernel.nfs", {"server": "10.0.0.1", "ok": False}),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56)", "kernel.gpu_lost", {"bus_id": "0000:3b:00.0"}),
        (
            "python3[42]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so.1[7f+1]",
            "kernel.segfault",
            {"pid": 42},
        ),
    ],
)
def test_other_messages(line: str, kind: str, fields: dict[str, Any]) -> None:
    event = only(line)
    assert event.kind == kind
    assert {name: event.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:17:00.0: mlx5_pcie_event:301:(pid 0): PCIe slot advertised sufficient power (75W).",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.161.08",
        "nvme nvme0: 64/0/0 default/read/poll queues",
        "NVRM: GPU at PCI:0000:3b:00: GPU-1f2ab1c4-0000-4c1d-9a51-0a1b2c3d4e5f",
    ],
)
def test_harmless_messages_say_nothing(line: str) -> None:
    assert events(line, KernelLog) == []


def test_syslog_names_the_host() -> None:
    event = only("gn81 kernel: [88211.331] NVRM: Xid (PCI:0000:66:00): 43, Ch 00000010")
    assert event.host == "gn81"


LOST = """[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: {}
"""


def test_a_gpu_lost_in_three_lines() -> None:
    event = only(LOST.format("fallen off the bus and is not responding to commands."))
    assert (event.kind, event.get("bus_id")) == ("kernel.gpu_lost", "0000:b3:00.0")


def test_a_board_that_is_not_supported_is_not_lost() -> None:
    assert events(LOST.format("been refused: not supported by this driver."), KernelLog) == []


@pytest.mark.parametrize(("state", "up"), [("DOWN", False), ("ACTIVE", True)])
def test_ports_of_infiniband(state: str, *, up: bool) -> None:
    event = only(f"n1 kernel: mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link {state}")
    assert (event.kind, event.get("interface"), event.get("up")) == ("kernel.link", "mlx5_5", up)
