"""Bytes of offloaded sums where the device is none of the host's: a CPU job never copies these (meta: the device)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ddiag.capture.hooks.zero_copies import (  # noqa: E402 - it is of no use without torch
    Traffic,
    _partitioned,
    _reassigned,
    fetched_bytes,
)

RANK, PART, REAL = 1, 100, 80
"""The second rank's part of 180 elements is 100 long, of which 20 are padding."""


def optimizer(pass_number: int, *, last: bool) -> Any:
    return SimpleNamespace(
        micro_step_id=pass_number,
        is_gradient_accumulation_boundary=lambda: last,
        master_weights_and_grads_dtype=torch.float32,
        _get_param_partition_rank=lambda _parameter: RANK,
        _DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition={7: torch.zeros(PART, dtype=torch.bfloat16)},
    )


def parameter(elements: int) -> Any:
    return SimpleNamespace(ds_id=7, ds_numel=elements, partition_numel=lambda: PART)


def partition(device: str) -> Any:
    return torch.empty(REAL, dtype=torch.bfloat16, device=device)


@pytest.mark.parametrize(
    ("pass_number", "last", "device", "expected"),
    [
        (0, False, "meta", Traffic(2 * REAL, 2 * REAL)),
        (1, False, "meta", Traffic(2 * REAL, 2 * REAL)),
        (1, True, "meta", Traffic(2 * REAL, 2 * REAL + 4 * REAL)),
        (0, False, "cpu", Traffic(0, 2 * REAL)),
        (1, False, "cpu", Traffic(0, 0)),
        (1, True, "cpu", Traffic(0, 4 * REAL)),
    ],
)
def test_sums_on_the_host_go_both_ways_in_every_pass(
    pass_number: int, last: bool, device: str, expected: Traffic
) -> None:
    given = ([parameter(180)], [partition(device)])
    assert _partitioned(optimizer(pass_number, last=last), given) == expected


def test_a_part_that_is_nothing_but_padding_does_not_travel() -> None:
    given = ([parameter(100)], [partition("meta")])
    assert _partitioned(optimizer(0, last=True), given) == Traffic(0, 0)


HOST, DEVICE = torch.device("cpu"), torch.device("meta")


def gathered(part: Any, *, swapper: Any = None, location: str | None = None) -> Any:
    """A parameter of PART elements in bfloat16 whose part on this rank is *part*."""
    part.ds_numel, part.final_location = PART, location
    return SimpleNamespace(ds_tensor=part, nvme_swapper=swapper, element_size=lambda: 2)


@pytest.mark.parametrize(("lies", "expected"), [(HOST, 2 * PART), (DEVICE, 0)])
def test_a_part_on_the_host_goes_to_the_device_to_be_gathered(lies: Any, expected: int) -> None:
    kept = gathered(torch.empty(PART, dtype=torch.bfloat16, device=lies))
    on_device = gathered(torch.empty(PART, dtype=torch.bfloat16, device=DEVICE))
    assert fetched_bytes([kept, on_device], "meta") == expected


@pytest.mark.parametrize(("read_to", "expected"), [(HOST, 2 * PART), (DEVICE, 0)])
def test_a_swapped_part_will_have_been_read_to_its_buffers(read_to: Any, expected: int) -> None:
    """While it lies on NVMe its tensor is an empty one on the host; buffers on the device are read to directly."""
    swapper = SimpleNamespace(buffers=torch.empty(4 * PART, device=read_to))
    away = gathered(torch.tensor(1).half(), swapper=swapper, location="nvme")
    assert fetched_bytes([away], "meta") == expected


@pytest.mark.parametrize(
    ("states", "parameters", "expected"),
    [(True, False, Traffic(2 * PART, 0)), (False, True, Traffic(0, 2 * PART)), (True, True, Traffic(0, 0))],
)
def test_updated_parameters_travel_where_they_are_kept_elsewhere(
    states: bool, parameters: bool, expected: Traffic
) -> None:
    flat = [torch.zeros(PART, dtype=torch.bfloat16), None]
    optimizer = SimpleNamespace(offload_optimizer=states, offload_param=parameters, fp16_partitioned_groups_flat=flat)
    assert _reassigned(optimizer, (0,)) == expected
    assert _reassigned(optimizer, (1,)) == Traffic(0, 0), "swapped to NVMe"
