"""Who runs where: what connects a rank with its host and device, and what does not."""

from __future__ import annotations

from pathlib import Path

from ddiag.analysis import derive
from ddiag.ingest import load
from ddiag.model.placement import Placement, same_host

INIT = (
    "{host}:{pid}:9 [{dev}] NCCL INFO {what} comm 0x1 rank {rank} nranks {n} cudaDev {dev} busId {bus} - Init COMPLETE"
)


def placed(folder: Path, **files: str) -> Placement:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    found = derive(load([str(folder)])).get(Placement)
    assert found is not None
    return found


def init(rank: int, host: str, bus: str, *, n: int, dev: int = 0, what: str = "ncclCommInitRank") -> str:
    return INIT.format(host=host, pid=100 + rank, dev=dev, what=what, rank=rank, n=n, bus=bus)


def timeouts(*ranks: int) -> str:
    return "\n".join(
        f"[rank{rank}]:[E1104 03:11:52.500113842 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for "
        "600031 milliseconds before timing out."
        for rank in ranks
    )


def indices(count: int) -> str:
    return "index, pci.bus_id\n" + "".join(f"{i}, 00000000:{0x10 + i:02X}:00.0\n" for i in range(count))


def test_a_communicator_of_all_ranks_places_them(tmp_path: Path) -> None:
    text = "\n".join(init(rank, f"n{rank // 2}", f"{3 + rank % 2}b000", n=4, dev=rank % 2) for rank in range(4))
    found = placed(tmp_path, job__log=text)
    assert [seat.rank for seat in found.on_device("n1", "0000:4b:00.0")] == [3]
    assert [seat.rank for seat in found.of_process("n0", 101)] == [1]
    assert found.ranks_of("n1.cluster") == (2, 3)


def test_a_device_that_two_hosts_have_is_nobodys_without_a_host(tmp_path: Path) -> None:
    text = "\n".join(init(rank, f"n{rank}", "3b000", n=2) for rank in range(2))
    assert placed(tmp_path, job__log=text).on_device(None, "0000:3b:00.0") == ()


def test_ranks_of_a_subgroup_are_no_ranks_of_the_job(tmp_path: Path) -> None:
    text = "\n".join(init(rank, "n0", f"{3 + rank}b000", n=2, dev=rank) for rank in range(2))
    found = placed(tmp_path, job__log=f"{text}\n{timeouts(0, 1, 5)}")
    assert found.on_device("n0", "0000:3b:00.0") == ()


def test_two_subgroups_of_equal_size_contradict_each_other(tmp_path: Path) -> None:
    text = "\n".join(init(rank, host, "3b000", n=2) for host in ("n0", "n1") for rank in range(2))
    assert placed(tmp_path, job__log=text).seats == ()


def test_on_one_node_rank_n_is_on_gpu_n_as_long_as_nothing_says_otherwise(tmp_path: Path) -> None:
    found = placed(tmp_path, job__log=timeouts(0, 1, 3), gpus__csv=indices(4))
    (seat,) = found.on_device(None, "0000:12:00.0")
    assert (seat.rank, seat.assumed) == (2, True)


def test_visible_devices_say_otherwise(tmp_path: Path) -> None:
    text = f"CUDA_VISIBLE_DEVICES=3,2,1,0\n{timeouts(0, 1, 3)}"
    (seat,) = placed(tmp_path, job__log=text, gpus__csv=indices(4)).on_device(None, "0000:12:00.0")
    assert seat.rank == 1


def test_more_ranks_than_devices_are_not_placed(tmp_path: Path) -> None:
    found = placed(tmp_path, job__log=timeouts(0, 1, 9), gpus__csv=indices(4))
    assert found.on_device(None, "0000:12:00.0") == ()


def test_devices_alone_name_no_rank(tmp_path: Path) -> None:
    found = placed(tmp_path, gpus__csv=indices(4))
    assert (found.seats, found.bus(None, "gpu2")) == ((), "0000:12:00.0")


def test_hosts_match_with_and_without_domain() -> None:
    assert same_host("gn31", "gn31.cluster.local")
    assert not same_host("gn31", "gn32.cluster.local")
    assert not same_host("10.0.0.1", "10.0.0.2")
