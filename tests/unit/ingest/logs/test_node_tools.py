"""ibstat, ibv_devinfo, rdma, lspci, ulimit, df, lsmod, systemctl, env, pip: what tools say of a node."""

from __future__ import annotations

import pytest

from ddiag.ingest.logs.environment import Environment
from ddiag.ingest.logs.gpu_texts import GpuTexts
from ddiag.ingest.logs.host_tools import HostTools
from ddiag.ingest.logs.infiniband import InfiniBandTools
from ddiag.ingest.logs.pci import PciTools
from ddiag.model.incident import NodeFact
from tests.unit.ingest.logs.seen import events, seen, settings
from tests.unit.ingest.logs.test_nvidia_smi import facts


def test_ports_in_the_words_of_four_tools() -> None:
    ibstat = "CA 'mlx5_2'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 10\n"
    devinfo = "hca_id: mlx5_2\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_DOWN (1)\n\t\t\tlink_layer:\t\tInfiniBand\n"
    rdma = "link mlx5_2/1 state DOWN physical_state DISABLED netdev ens2\n"
    pairs = "mlx5_2 port 1 ==> ib2 (Down)\n"
    for text in (ibstat, devinfo, rdma, pairs):
        assert ("mlx5_2", "nic.state", "Down") in facts(text, InfiniBandTools)
    assert ("mlx5_2", "nic.rate_gbps", 10.0) in facts(ibstat, InfiniBandTools)


def test_only_telling_counters_are_kept() -> None:
    text = (
        "$ ethtool -S ens1\nNIC statistics:\n     rx_packets: 12\n     rx_prio3_pause: 123\n     out_of_sequence: 9\n"
    )
    assert facts(text, InfiniBandTools) == [
        ("ens1", "nic.counter.rx_prio3_pause", 123.0),
        ("ens1", "nic.counter.out_of_sequence", 9.0),
    ]


def test_links_and_access_control_of_lspci() -> None:
    text = (
        "2a:00.0 3D controller: NVIDIA Corporation GA100 (rev a1)\n"
        "\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported\n"
        "\tLnkSta:\tSpeed 16GT/s (ok), Width x8 (downgraded)\n"
        "00:03.1 PCI bridge: AMD GPP Bridge\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+\n"
    )
    found = facts(text, PciTools)
    assert ("0000:2a:00.0", "pcie.width", 8.0) in found
    assert ("0000:2a:00.0", "pcie.width_max", 16.0) in found
    (event,) = events(text, PciTools)
    assert (event.kind, event.get("bus_id")) == ("node.acs", "0000:00:03.1")


def test_access_control_that_is_off_is_no_event() -> None:
    text = "00:03.1 PCI bridge: AMD GPP Bridge\n\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd-\n"
    assert events(text, PciTools) == []


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("max locked memory       (kbytes, -l) 64", 65536.0),
        ("max locked memory           (kbytes, -l) unlimited", "unlimited"),
        ("Max locked memory         65536                65536                bytes", 65536.0),
        ("Max locked memory         unlimited            unlimited            bytes", "unlimited"),
    ],
)
def test_the_limit_of_locked_memory(line: str, value: float | str) -> None:
    assert facts(line, HostTools) == [(None, "limit.memlock_bytes", value)]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("shm              64M   63M  1.0M  99% /dev/shm", 64 << 20),
        ("tmpfs           252G  1.2G  251G   1% /dev/shm", 252 << 30),
        ("Filesystem     1K-blocks  Used Available Use% Mounted on\ntmpfs 65536 0 65536 0% /dev/shm", 64 << 20),
    ],
)
def test_the_size_of_shared_memory(text: str, size: int) -> None:
    assert (None, "shm.size_bytes", float(size)) in facts(text, HostTools)


@pytest.mark.parametrize("version", ["Fabric Manager version is : 535.161.08", "fabric manager version: 535.161.08"])
def test_the_fabric_manager(version: str) -> None:
    text = (
        f"● nvidia-fabricmanager.service - NVIDIA fabric manager\n     Active: failed (Result: exit-code)\n{version}\n"
    )
    assert [(event.get("service"), event.get("state")) for event in events(text, HostTools)] == [
        ("nvidia-fabricmanager", "failed")
    ]
    assert (None, "service.version", "nvidia-fabricmanager 535.161.08") in [
        (device, key, str(value)) for device, key, value in facts_as_text(text)
    ]


def facts_as_text(text: str) -> list[tuple[str | None, str, str]]:
    return [(one.device, one.key, one.text) for one in seen(text, HostTools) if isinstance(one, NodeFact)]


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_P2P_DISABLE=1",
        "export NCCL_P2P_DISABLE=1; python x.py",
        "mpirun -x NCCL_P2P_DISABLE=1 -np 8 ./a.out",
        "environ({'HOME': '/root', 'NCCL_P2P_DISABLE': '1'})",
        'docker run -e NCCL_P2P_DISABLE="1" image',
    ],
)
def test_variables_wherever_they_are_set(text: str) -> None:
    assert settings(text, Environment)["env:NCCL_P2P_DISABLE"] == "1"


@pytest.mark.parametrize(
    "text",
    [
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5",
        "or disable the heartbeat monitor (TORCH_NCCL_ENABLE_MONITORING=0).If either of aforementioned helps",
        'Please set `NCCL_P2P_DISABLE="1"` and `NCCL_IB_DISABLE="1" or use `accelerate launch`',
    ],
)
def test_advice_in_an_error_text_sets_nothing(text: str) -> None:
    assert settings(text, Environment) == {}


@pytest.mark.parametrize(
    "text", ["torch==2.5.1+cu124", "torch                    2.5.1+cu124", "torch  2.5.1+cu124  pypi_0"]
)
def test_packages_of_pip_and_conda(text: str) -> None:
    assert settings(text, Environment) == {"package:torch": "2.5.1+cu124"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "nvlink"),
        ("RuntimeError: CUDA error: system not yet initialized", "not_initialized"),
    ],
)
def test_cuda_errors_that_only_hardware_causes(text: str, what: str) -> None:
    assert [event.get("what") for event in events(text, GpuTexts)] == [what]


def test_cuda_errors_of_programs_are_none() -> None:
    assert events("RuntimeError: CUDA error: an illegal memory access was encountered", GpuTexts) == []


def test_a_process_that_waits_for_a_file_server() -> None:
    rows = "    PID STAT WCHAN                    CMD\n   4711 Dl   rpc_wait_bit_killable    python train.py\n"
    local = (
        "   4712 D    io_schedule              python train.py\n   4713 Sl   futex_wait_queue         python train.py\n"
    )
    assert [event.integer("pid") for event in events(rows + local, HostTools)] == [4711]


def test_variables_of_a_pod() -> None:
    text = '  env:\n    - name: NCCL_ALGO\n      value: "Ring"\n    - name: OTHER\n      value: x\n'
    assert settings(text, Environment) == {"env:NCCL_ALGO": "Ring"}
