"""Recorded communication of the other parallelisms: FSDP1, nested FSDP2, HSDP, tensor and pipeline parallelism."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddiag.schema.phases import Flag, Op, Phase
from tests.integration.comm import TIERS, as_torch_logs, labels
from tests.integration.recording import record

pytestmark = [pytest.mark.long]


@pytest.mark.parametrize("tier", TIERS)
def test_fsdp1(tmp_path: Path, tier: str) -> None:
    recording = record(tmp_path, "fsdp1", tier=tier)
    for rank in recording.ranks:
        assert as_torch_logs(rank.calls) == rank.true_calls
        gathered = [label for op, label in labels(rank, 2) if op == "all_gather"]
        assert gathered == [f"fsdp/{one}" for one in ("root", "0", "1", "2", "2", "1", "0")]
        assert {fact["strategy"] for fact in rank.facts_of("fsdp_unit")} == {"FULL_SHARD"}
        (root,) = rank.facts_of("fsdp")
        assert (root["backward_prefetch"], root["limit_all_gathers"]) == ("BACKWARD_PRE", True)
    assert recording.errors == []


@pytest.mark.parametrize("tier", TIERS)
def test_nested_units(tmp_path: Path, tier: str) -> None:
    recording = record(tmp_path, "fsdp2", "nested", tier=tier)
    for rank in recording.ranks:
        assert as_torch_logs(rank.calls) == rank.true_calls
        gathered = [label for op, label in labels(rank, 1) if op == "all_gather"]
        assert gathered[:4] == ["fsdp/0", "fsdp/0.up", "fsdp/1", "fsdp/1.up"]
    assert recording.errors == []


@pytest.mark.parametrize("tier", TIERS)
def test_replicas_of_shards(tmp_path: Path, tier: str) -> None:
    """Gradients are scattered in the shard group, then reduced between the replicas."""
    recording = record(tmp_path, "fsdp2", "hsdp", ranks=4, tier=tier)
    for rank in recording.ranks:
        row, column = divmod(rank.files.rank, 2)
        assert rank.groups_named("mesh_shard") == (2 * row, 2 * row + 1)
        assert rank.groups_named("mesh_replicate") == (column, column + 2)
        assert as_torch_logs(rank.calls) == rank.true_calls
        for op, group in {(one.op, one.group) for one in rank.calls}:
            assert group == rank.groups_named("mesh_replicate" if op == "all_reduce" else "mesh_shard")
    assert recording.errors == []


@pytest.mark.parametrize("tier", TIERS)
def test_tensor_parallel(tmp_path: Path, tier: str) -> None:
    """Functional collectives, all issued from C++."""
    recording = record(tmp_path, "tensor_parallel", tier=tier)
    for rank in recording.ranks:
        steady = [one for one in rank.calls if one.step > 0]
        assert steady == [one for one in rank.true_calls if one.step > 0]
        assert {one.op for one in steady} == {"all_reduce"}
        forward = [one for one in rank.collectives if one.step == 1 and one.phase != Phase.BACKWARD]
        backward = [one for one in rank.collectives if one.step == 1 and one.phase == Phase.BACKWARD]
        assert (len(forward), len(backward)) == (2, 2)
    assert recording.errors == []


@pytest.mark.parametrize("tier", TIERS)
def test_pipeline(tmp_path: Path, tier: str) -> None:
    """Activations go down and gradients come back, once per micro-batch, each under its own name."""
    recording = record(tmp_path, "pipeline", tier=tier)
    first, last = recording.ranks
    chunk = first.truth["chunk_bytes"]
    for rank, stage in ((first, 0), (last, 1)):
        for step in (1, 2):
            calls = [one for one in rank.collectives if one.step == step]
            sent = [rank.label(one) for one in calls if one.op == Op.SEND]
            received = [rank.label(one) for one in calls if one.op == Op.RECV]
            assert sent == received == [f"pp/stage{stage}/mb{at}" for at in range(4)]
            assert {max(one.bytes_in, one.bytes_out) for one in calls} == {chunk}
            assert {one.peer for one in calls} == {1 - stage}
        chunks = [one for one in rank.records if one.kind == 2 and one.op == Phase.FORWARD and one.step == 1]
        assert [rank.label(one) for one in chunks if not one.flags & Flag.INFERRED] == sent
    assert recording.errors == []
