"""Bytes of offloaded sums where the device is none of the host's: a CPU job never copies these (meta: the device)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ddiag.capture.hooks.zero_copies import Traffic, _partitioned  # noqa: E402 - it is of no use without torch

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
