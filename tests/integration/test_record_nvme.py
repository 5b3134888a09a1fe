"""DeepSpeed keeps parameters on the host, and swaps to NVMe: bytes against arithmetic, times against the job's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ddiag.schema.phases import Copy, Kind, Phase, State
from ddiag.schema.ring import Record
from tests.integration.comm import BEST
from tests.integration.deepspeed_ops import BUILD_LIMIT_S, deepspeed_environment, python_with
from tests.integration.recording import RankRecording, Recording, record

pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * BUILD_LIMIT_S)]
STEPS, PASSES = 3, 2
BF16, FP32 = 2, 4
STATES = 3
"""Of Adam: the master weights and two moments, which the first update makes."""
_ASYNCHRONOUS_IO = """
from deepspeed.accelerator import get_accelerator
builder = get_accelerator().create_op_builder("AsyncIOBuilder")
assert builder.is_compatible(), "no libaio"
builder.load(verbose=False)
"""


def train(folder: Path, parameters: str, optimizer: str, *more: str) -> Recording:
    """A job that offloads both as told: to none, cpu or nvme (a folder)."""
    python = python_with("deepspeed")
    variables = deepspeed_environment(python)
    if "nvme" in (parameters, optimizer):
        _build(python, variables)
    (folder / "swaps").mkdir()
    arguments = (str(folder / "swaps"), parameters, optimizer, *more)
    recording = record(folder, "zero_nvme", *arguments, tier=BEST, python=python, environment=variables)
    assert recording.errors == []
    for rank in recording.ranks:
        assert len(rank.steps) == STEPS
        assert rank.facts_of("hook_missing") == []
    return recording


def _build(python: str, variables: dict[str, str]) -> None:
    """DeepSpeed's asynchronous I/O, which takes minutes to compile; skips the calling test without libaio."""
    done = subprocess.run(
        [python, "-c", _ASYNCHRONOUS_IO],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    if "no libaio" in done.stderr:
        pytest.skip("DeepSpeed swaps through libaio: no libaio.h")
    assert done.returncode == 0, done.stderr[-4000:]


def copies(rank: RankRecording, *kinds: Copy, label: str = "") -> list[Record]:
    """Of the training, whose steps have phases: not of building the engine."""
    chosen = [one for one in rank.records if one.kind == Kind.COPY and one.op in kinds and one.phase != Phase.NONE]
    assert all(one.state == State.DONE for one in chosen)
    return [one for one in chosen if (rank.label(one) or "").startswith(label)]


def moved(rank: RankRecording, copy: Copy, label: str = "") -> list[int]:
    """Bytes in each step."""
    chosen = copies(rank, copy, label=label)
    return [sum(one.bytes_in for one in chosen if one.step == step) for step in range(STEPS)]


def gathered(rank: RankRecording) -> list[int]:
    """Bytes that this rank put into gathers, by torch's own log."""
    calls = [one for one in rank.true_calls if one.op == "all_gather"]
    return [sum(one.bytes_in for one in calls if one.step == step) for step in range(STEPS)]


@pytest.mark.parametrize("pipelined", [(), ("pipeline",)])
def test_states_on_nvme_are_read_and_written_once_a_step(tmp_path: Path, pipelined: tuple[str, ...]) -> None:
    """And gradients are written in the last pass, to be read with them."""
    for rank in train(tmp_path, "none", "nvme", *pipelined).ranks:
        part = rank.truth["part"]
        states, gradients = STATES * FP32 * part, FP32 * part
        read = [FP32 * part + gradients] + [states + gradients] * (STEPS - 1)
        assert moved(rank, Copy.SWAP_IN, "zero/subgroup") == read
        assert moved(rank, Copy.SWAP_OUT, "zero/subgroup") == [states] * STEPS
        assert moved(rank, Copy.SWAP_OUT, "zero/gradient") == [gradients] * STEPS
        assert moved(rank, Copy.SWAP_IN) == moved(rank, Copy.SWAP_IN, "zero/subgroup")
        updates = copies(rank, Copy.CPU_OPTIMIZER)
        assert [one.step for one in updates] == [step for step in range(STEPS) for _ in range(rank.truth["sub_groups"])]
        assert moved(rank, Copy.H2D) == [BF16 * part] * STEPS
        swapped = copies(rank, Copy.SWAP_IN, Copy.SWAP_OUT, label="zero/subgroup")
        spent_ms = sum(one.end_ns - one.start_ns for one in swapped) / 1e6
        own_ms = sum(rank.truth["read_ms"]) + sum(rank.truth["written_ms"])
        assert 0.3 * own_ms < spent_ms <= own_ms, "the methods allocate and copy, too"


def test_parameters_on_nvme_are_read_to_be_gathered_and_written_when_updated(tmp_path: Path) -> None:
    for rank in train(tmp_path, "nvme", "nvme").ranks:
        part = rank.truth["part"]
        assert moved(rank, Copy.SWAP_IN, "zero/parameters")[1:] == gathered(rank)[1:], "before the first, it is built"
        assert min(gathered(rank)) > PASSES * BF16 * part, "for forward, and most of it again for backward"
        assert moved(rank, Copy.SWAP_OUT, "zero/parameters") == [BF16 * part] * STEPS
        assert moved(rank, Copy.SWAP_OUT, "zero/subgroup") == [STATES * FP32 * part] * STEPS
        assert moved(rank, Copy.H2D) == [0] * STEPS, "they stay on the host, which is the device here"


@pytest.mark.parametrize("optimizer", ["none", "cpu"])
def test_parameters_kept_on_the_host(tmp_path: Path, optimizer: str) -> None:
    """Gathering copies nothing to a device that is the host; what a device updated goes back to it."""
    for rank in train(tmp_path, "cpu", optimizer).ranks:
        part = rank.truth["part"]
        assert moved(rank, Copy.H2D) == [0] * STEPS
        returned = BF16 * part if optimizer == "none" else 0
        sums = (BF16 + FP32) * part if optimizer == "cpu" else 0
        assert moved(rank, Copy.D2H) == [returned + sums] * STEPS
        assert copies(rank, Copy.SWAP_IN, Copy.SWAP_OUT) == []
        assert rank.facts_of("deepspeed")[0]["zero_offload_param"]["device"] == "cpu"
