"""The native kernel is written in C++ and repeats the ring's layout: here the two are compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddiag.capture.hooks.c10d_ops import OPERATIONS
from ddiag.capture.native.build import SOURCE
from ddiag.schema import ring
from ddiag.schema.phases import Flag, Kind, Op, Phase, State

CODE = SOURCE.read_text(encoding="utf-8")


def constant(name: str) -> int:
    found = re.search(rf"\b{name} = (\d+)", CODE)
    assert found, name
    return int(found[1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kHeaderBytes", ring.HEADER_BYTES),
        ("kHeadOffset", ring.HEAD_OFFSET),
        ("kLiveOffset", ring.LIVE_OFFSET),
        ("kLiveStep", ring.LIVE_STEP - ring.LIVE_OFFSET // 8),
        ("kLivePhase", ring.LIVE_PHASE - ring.LIVE_OFFSET // 8),
        ("kLiveProgress", ring.LIVE_PROGRESS - ring.LIVE_OFFSET // 8),
        ("kLiveSeq", ring.LIVE_SEQ - ring.LIVE_OFFSET // 8),
        ("kLiveErrors", ring.LIVE_ERRORS - ring.LIVE_OFFSET // 8),
        ("kLiveMicroStep", ring.LIVE_MICRO_STEP - ring.LIVE_OFFSET // 8),
        ("kCountedCalls", ring.COUNTED_CALLS - ring.LIVE_OFFSET // 8),
        ("kCountedBytes", ring.COUNTED_BYTES - ring.LIVE_OFFSET // 8),
        ("kCountedWait", ring.COUNTED_WAIT_NS - ring.LIVE_OFFSET // 8),
        ("kForwards", ring.FORWARDS - ring.LIVE_OFFSET // 8),
        ("kReplicas", ring.REPLICAS),
        ("kNoDtype", ring.NO_DTYPE),
        ("kCollective", Kind.COLLECTIVE),
        ("kBackward", Phase.BACKWARD),
        ("kOpen", State.OPEN),
        ("kIssued", State.ISSUED),
        ("kDone", State.DONE),
        ("kFailed", State.FAILED),
        ("kAsync", Flag.ASYNC),
        ("kNativeFlag", Flag.FROM_NATIVE),
        ("kEndIsWait", Flag.END_IS_WAIT),
        ("kEndUnknown", Flag.END_UNKNOWN),
        ("kWait", Op.WAIT),
    ],
)
def test_constants_are_the_same(name: str, value: int) -> None:
    assert constant(name) == value


def test_the_record_has_the_same_fields_in_the_same_order() -> None:
    (body,) = re.findall(r"struct Record \{(.*?)\};", CODE, re.S)
    fields = [name for line in body.split(";") for name in re.findall(r"\w+(?=\s*(?:,|$|\[))", line.strip())]
    assert fields == [*ring.RECORD_FIELDS, "rest"]


def test_the_ops_are_numbered_the_same() -> None:
    (listed,) = re.findall(r"enum Op : uint16_t \{\s*(.*?)\}", CODE, re.S)
    names = [one.strip() for one in listed.split(",")]
    for number, name in enumerate(names[:11], start=1):
        written = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.split(" ")[0].removeprefix("k")).upper()
        assert Op[written] == number


def test_both_kernels_take_the_same_operations() -> None:
    listed = dict(re.findall(r'\{"(\w+)", k(\w+)\}', CODE))
    assert {name: op.lower() for name, op in listed.items()} == {
        name: op.name.replace("_", "").lower() for name, op in OPERATIONS.items()
    }


def test_the_source_travels_with_the_package() -> None:
    assert SOURCE.parent == Path(ring.__file__).parents[1] / "capture" / "native"
