"""NCCL's log in the words of its versions 2.10 to 2.30, in the envelopes of launchers."""

from __future__ import annotations

from typing import Any

import pytest

from ddiag.ingest.logs.nccl import NcclLog
from tests.unit.ingest.logs.seen import events, settings


def only(text: str) -> Any:
    (event,) = events(text, NcclLog)
    return event


@pytest.mark.parametrize(
    "prefix",
    [
        "nd7:4100:4133 [2] NCCL INFO ",
        "[1,14]<stdout>:nd7:4100:4133 [2] NCCL INFO ",
        "14: nd7:4100:4133 [2] NCCL INFO ",
        "[default2]:nd7:4100:4133 [2] NCCL INFO ",
        "(RayWorkerWrapper pid=4100, ip=10.3.1.7) \x1b[36mnd7:4100:4133 [2] NCCL INFO ",
        "2025-04-01 10:11:12 nd7:4100:4133 [2] NCCL INFO ",
        "nd7: nd7:4100:4133 [2] NCCL INFO ",
        " 14%|█▍ | 377/2724 [13:55:57<86:19:20, 132.41s/it]nd7:4100:4133 [2] NCCL INFO ",
    ],
)
def test_the_writer_is_known_in_every_envelope(prefix: str) -> None:
    event = only(f"{prefix}Using network IB")
    assert (event.kind, event.host, event.integer("pid"), event.integer("dev")) == ("nccl.network", "nd7", 4100, 2)


@pytest.mark.parametrize(
    ("message", "rank", "nranks", "bus_id", "phase"),
    [
        ("comm 0x7f10 rank 5 nranks 8 cudaDev 5 busId b7000 - Init COMPLETE", 5, 8, "0000:b7:00.0", "complete"),
        (
            "ncclCommInitRank comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x4b - Init START",
            0, 2, "0000:01:00.0", "start",
        ),
        (
            "[Rank 3] ncclCommInitRankConfig comm 0x55 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 10b1c0 commId 0x4b"
            " - Init START",
            3, 4, "0001:0b:1c.0", "start",
        ),
        ("comm 0x55 rank 1 nranks 16 cudaDev 1 busId ca000 - Abort COMPLETE", 1, 16, "0000:ca:00.0", "abort"),
        ("comm 0x55 rank 1 nranks 16 cudaDev 1 busId ca000 - Destroy COMPLETE", 1, 16, "0000:ca:00.0", "destroy"),
    ],
)  # fmt: skip
def test_communicators_of_all_versions(message: str, rank: int, nranks: int, bus_id: str, phase: str) -> None:
    event = only(f"h:1:2 [0] NCCL INFO {message}")
    found = (event.integer("rank"), event.integer("nranks"), event.get("bus_id"), event.get("phase"))
    assert found == (rank, nranks, bus_id, phase)


@pytest.mark.parametrize(
    ("message", "transport", "net", "gdr", "via"),
    [
        ("Channel 00 : 0[1000] -> 1[24000] via P2P/IPC", "p2p", None, None, None),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "p2p", None, None, None),
        ("Channel 03 : 0[6000] -> 1[7000] via direct shared memory", "shm", None, None, None),
        ("Channel 00 : 1[1] -> 2[2] via SHM/direct/direct", "shm", None, None, None),
        ("Channel 00 : 1[1] -> 2[2] via SHM/direct", "shm", None, None, None),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0", "net", "Socket", False, None),
        ("Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/2", "net", "IB", False, None),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA", "net", "IB", True, None),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0(3)/GDRDMA(PCI)/Shared", "net", "IB", True, 3),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/AWS Libfabric/1/GDRDMA", "net", "AWS Libfabric", True, None),
        ("Channel 00/0 : 7[7] -> 8[0] [send] via NET/IBext_v8/1/GDRDMA", "net", "IBext_v8", True, None),
    ],
)
def test_transports(message: str, transport: str, net: str | None, gdr: bool | None, via: int | None) -> None:
    event = only(f"h:1:2 [0] NCCL INFO {message}")
    found = (event.get("transport"), event.get("net"), event.get("gdr"), event.get("via"))
    assert found == (transport, net, gdr, via)


def test_a_pair_is_told_once_however_many_channels_it_has() -> None:
    lines = [f"h:1:2 [0] NCCL INFO Channel {n:02d}/0 : 0[0] -> 1[1] via P2P/IPC" for n in range(32)]
    assert len(events("\n".join(lines), NcclLog)) == 1


@pytest.mark.parametrize(
    ("line", "status", "vendor", "peer", "nic"),
    [
        (
            "h:1:2 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<44206> with "
            "error 12, opcode 0, len 0, vendor err 129",
            12, 129, "10.0.0.2<44206>", None,
        ),
        (
            "h:1:2 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer fe80::1%eth0<44206> "
            "with status=5 opcode=32578 len=32577 vendor err 249 (Recv) localGid :: remoteGidsfe80::2",
            5, 249, "fe80::1%eth0<44206>", None,
        ),
        (
            "[2026-01-01 00:00:00] h:1:2 [0] transport/net_ib/p2p.cc:3 (ncclIbTest) NCCL WARN NET/IB: Got completion "
            "from peer 10.0.0.2<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor err "
            "129 (Send) hca mlx5_4",
            12, 129, "10.0.0.2<1>", "mlx5_4",
        ),
    ],
)  # fmt: skip
def test_failed_rdma_operations(line: str, status: int, vendor: int, peer: str, nic: str | None) -> None:
    event = only(line)
    assert event.kind == "nccl.completion_error"
    found = (event.integer("status"), event.integer("vendor_err"), event.get("peer"), event.get("nic"))
    assert found == (status, vendor, peer, nic)


@pytest.mark.parametrize(
    ("message", "kind", "fields"),
    [
        ("NET/IB : Got async event : port error", "nccl.async_event", {"nic": None, "what": "port error"}),
        ("NET/IB : mlx5_0:1 Got async error event: port error", "nccl.async_event", {"nic": "mlx5_0"}),
        ("Call to ibv_modify_qp failed with error Network is unreachable", "nccl.qp_error", {"gid_index": None}),
        (
            "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1, curr state INIT, next "
            "state RTR, local GID index 3, local GID ::ffff:10.0.0.1, remote GID ::ffff:10.0.0.2",
            "nccl.qp_error",
            {"nic": "mlx5_2", "gid_index": 3, "local_gid": "::ffff:10.0.0.1", "error": "Connection timed out"},
        ),
        ("Call to ibv_create_cq failed", "nccl.memlock", {"call": "ibv_create_cq", "error": ""}),
        (
            "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "nccl.memlock",
            {"error": "Cannot allocate memory"},
        ),
        ("Call to posix_fallocate failed : No space left on device", "nccl.shm_error", {"path": "posix_fallocate"}),
        (
            "Error: failed to extend /dev/shm/nccl-a to 9637892 bytes, error: No space left on device (28)",
            "nccl.shm_error",
            {"bytes": 9637892},
        ),
        ("Cuda failure 'out of memory'", "nccl.cuda_failure", {"code": None, "message": "out of memory"}),
        ("Cuda failure 802 'system not yet initialized'", "nccl.cuda_failure", {"code": 802}),
        (
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device a000",
            "nccl.duplicate_gpu",
            {"ranks": [1, 0], "bus_id": "0000:0a:00.0"},
        ),
        (
            "Mismatched NCCL version detected : rank 1 version 22005 rank 0 version 21903",
            "nccl.version_mismatch",
            {"rank_a": 1, "version_b": 21903},
        ),
        ("Message truncated : received 524288 bytes instead of 65536", "nccl.protocol_mismatch", {"what": "truncated"}),
        ("Call to accept failed : Too many open files", "nccl.limit", {"what": "files"}),
        ("Proxy Call to rank 14 failed (Connect)", "nccl.peer_lost", {"peer_rank": 14}),
        ("Socket recv failed while polling for opId=0x7f", "nccl.peer_lost", {}),
        (
            "socketPollConnect: connect to 10.0.0.2<3> returned Connection refused, exceeded error retry count",
            "nccl.connect_error",
            {"address": "10.0.0.2<3>"},
        ),
        ("socketStartConnect: exceeded retries (20000)", "nccl.connect_error", {}),
        ("MNNVL (cliqueSize 18) is available but not working on this system.", "nccl.imex", {"clique_size": 18}),
        ("a warning of tomorrow", "nccl.warning", {"message": "a warning of tomorrow"}),
    ],
)
@pytest.mark.parametrize(
    "prefix",
    [
        "h:1:2 [0] transport/x.cc:9 NCCL WARN ",
        "[2026-01-02 03:04:05] h:1:2 [0] transport/x.cc:9 NCCL WARN ",
        "[2026-01-02 03:04:05] h:1:2 [0] transport/x.cc:9 (ncclFunction) NCCL WARN ",
        "[0] transport/x.cc:9 NCCL WARN ",
        "h:1:2 [0] ib_plugin.c:1615 NCCL WARN ",
    ],
)
def test_warnings_of_all_versions(prefix: str, message: str, kind: str, fields: dict[str, Any]) -> None:
    event = only(prefix + message)
    assert event.kind == kind
    assert {name: event.get(name) for name in fields} == fields


def test_retries_are_no_errors_and_lost_peers_are_told_by_local_rank() -> None:
    found = events(
        "h:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
        "h:1:2 [0] NCCL INFO [Service thread] Connection closed by localRank 2\n",
        NcclLog,
    )
    assert [event.kind for event in found] == ["nccl.retry", "nccl.peer_lost"]
    assert found[1].integer("local_rank") == 2


@pytest.mark.parametrize(
    ("message", "key", "value"),
    [
        ("NCCL_P2P_DISABLE set by environment to 1.", "NCCL_P2P_DISABLE", "1"),
        ("NCCL_ALGO set by environment to Ring", "NCCL_ALGO", "Ring"),
        ("NCCL_SOCKET_IFNAME set by environment to =eth0,eth1", "NCCL_SOCKET_IFNAME", "=eth0,eth1"),
    ],
)
def test_variables_set_by_the_environment(message: str, key: str, value: str) -> None:
    assert settings(f"h:1:2 [0] NCCL INFO {message}", NcclLog) == {f"env:{key}": value}


def test_a_host_that_was_masked_is_a_host() -> None:
    assert only("<node_a>:1:2 [0] NCCL INFO Using network IB").host == "<node_a>"


def test_interfaces_with_link_local_addresses() -> None:
    event = only("h:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.2.3<0> [1]veth4ac:fe80::215:5dff%veth4ac<0>")
    assert event.get("interfaces") == ["eth0", "veth4ac"]
    assert event.get("addresses") == ["10.1.2.3", "fe80::215:5dff%veth4ac"]


def test_the_error_torch_raises_carries_result_and_detail() -> None:
    event, cause = events(
        "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:317, remote process exited or there was a "
        "network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgress: Connection closed by remote peer x<1>\n",
        NcclLog,
    )
    assert (event.get("result"), event.get("version")) == ("ncclRemoteError", "2.21.5")
    assert event.word("detail").startswith("socketProgress")
    assert cause.kind == "nccl.peer_lost"


def test_what_a_plugin_sets_itself_is_nobodys_setting() -> None:
    text = (
        'h:1:2 [0] NCCL INFO NET/OFI Setting NCCL_PROTO to "simple"\n'
        "h:1:2 [0] NCCL INFO NCCL_PROTO set by environment to simple\n"
        "h:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
    )
    assert settings(text, NcclLog) == {"env:NCCL_ALGO": "Ring"}


def test_a_plugin_without_some_symbol_works() -> None:
    assert events("h:1:2 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v6 symbol.", NcclLog) == []
