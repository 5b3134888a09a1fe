"""The sentence that a person can check, and the capture that would settle what is open."""

from __future__ import annotations

from ddiag.analysis.hang.positions import Positions
from ddiag.model.signals_incident import SLOW_CHECKPOINT, Stall

DUMPS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 (before torch 2.8: TORCH_NCCL_TRACE_BUFFER_SIZE)"


def ranks(numbers: tuple[int, ...]) -> str:
    """``rank 3``, ``ranks 1 and 2``, ``ranks 0, 1, 2, … (64 in all)``."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 8:
        return f"ranks {', '.join(map(str, numbers[:3]))}, … ({len(numbers):,} in all)"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if numbers else "no rank"


def call(stall: Stall) -> str:
    """``all_reduce #4190 of default_pg``."""
    number = f" #{stall.seq}" if stall.seq is not None else ""
    group = f" of {stall.group}" if stall.group else ""
    return f"{stall.op or 'a call'}{number}{group}"


def why(stall: Stall) -> str:
    """What was compared with what."""
    count = stall.seen_waiting or len(stall.victims)
    waiting = f"{count:,} ranks wait" if count != 1 else "one rank waits"
    if stall.cause == SLOW_CHECKPOINT:
        return "every rank is in a checkpoint, and the coordinator runs out of time before all parts have come"
    who, what = ranks(stall.culprits), call(stall)
    does = "does" if len(stall.culprits) == 1 else "do"
    circle = ", ".join(f"rank {rank} in {place}" for rank, place in stall.cycle[:8])
    sentences = {
        "late": f"{who} did not come to {what}, in which or behind which {waiting}",
        "dead": f"{who} died; {waiting} for it",
        "mismatch": f"the members of {what} do not call the same: {stall.mismatch}",
        "deadlock": f"they wait for each other in a circle: {circle}" if circle else "groups wait for each other",
        "gpu_side": f"{who} enqueued {what} but its GPU never began it; all others did",
        "partly_done": f"others completed {what}; {who} took part and did not",
        "in_flight": f"every rank that was seen is in {what} with the same arguments, and none leaves it",
        "suspect_by_absence": f"everybody waits in {what}; only {who} {does} not show up there",
        "running": "no rank waits in a call",
    }
    open_question = f"{waiting} in {what}; the evidence of {ranks(stall.candidates)} is missing or equal"
    return sentences.get(stall.verdict, open_question)


def settle_with(stall: Stall, place: Positions | None) -> str:
    """Empty when nothing is open."""
    if stall.verdict in ("suspect_by_absence", "undecided"):
        wanted = ranks(stall.candidates or stall.culprits)
        have = "the Flight Recorder dump" if place is not None else "the log and the Flight Recorder dump"
        return f"{have} or a stack (py-spy dump --pid PID) of {wanted}; {DUMPS}"
    if stall.verdict == "in_flight":
        return (
            "two NCCL RAS snapshots ten seconds apart (ncclras -v), NIC counters and `nvidia-smi dmon` of every node, "
            "and pairwise nccl-tests: the rank whose bytes do not move"
        )
    if stall.verdict == "mismatch" and not stall.culprits:
        return "TORCH_DISTRIBUTED_DEBUG=DETAIL, or the same run with three ranks or more in the group"
    return ""
