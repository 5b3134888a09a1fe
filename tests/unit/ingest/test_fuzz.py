"""500 seeded mutations of three traces: a run or an InputError, never anything else, never slow, never large."""

from __future__ import annotations

import copy
import gzip
import json
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from ddiag.errors import DdiagError
from ddiag.ingest import load
from ddiag.model.run import Run
from ddiag.model.tables import TABLES
from tests.unit.ingest.kineto_text import BASE_US, healthy, op, span, trace

ROUNDS, PER_ROUND = 10, 50
LIMIT_S = 5.0
"""For one trace of a few dozen kB, which takes about 0.02 s: generous, because the machine may be busy."""
GROWTH_MB = 300


def recorded() -> dict[str, Any]:
    """The beginning of a real gloo trace (torch 2.13)."""
    content: dict[str, Any] = json.loads(
        gzip.decompress((Path(__file__).parent / "data" / "gloo_ddp_rank0.json.gz").read_bytes())
    )
    return {**content, "traceEvents": content["traceEvents"][:90] + content["traceEvents"][-60:]}


def old_layout() -> dict[str, Any]:
    edges = [
        {"ph": phase, "cat": "Operator", "name": "b", "pid": 1, "tid": "9", "ts": BASE_US + k}
        for k, phase in enumerate("BBEE")
    ]
    return trace(
        span("Operator", "ProfilerStep#4", 0, 100, tid="25738", **{"Input Dims": [[1, 2], []], "Call stack": "a;b"}),
        span(
            "Kernel",
            "ncclKernel_AllReduce_RING_LL_Sum_float",
            9,
            5,
            "stream 7",
            **{"external id": 9},
            device=0,
            stream=7,
        ),
        span("Memcpy", "Memcpy HtoD (Pageable -> Device)", 40, 5, "stream 7", bytes=100, stream=7),
        {
            "ph": "i",
            "s": "t",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": BASE_US,
            "args": {"Bytes": 4, "Device Type": 0},
        },
        *edges,
        *(op(f"aten::op{k}", k, 1) for k in range(30)),
    )


BASES = [
    recorded(),
    {**healthy(), "baseTimeNanoseconds": 7, "deviceProperties": [{"id": 0, "name": "H100"}]},
    old_layout(),
]
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 2**63, 2**64, 10**30, 1e308, -1e308, "", "NaN", "stream 7", "\u0000", "\ud83d", [], {}, [[]],
    [None], {"a": {"b": []}}, "x" * 5000, 0.1, -0.0, "12", "1e999",
]  # fmt: skip


def walk(node: Any, random_: random.Random) -> tuple[Any, Any] | None:
    """A container in *node* and one of its keys, chosen at random at any depth."""
    found = None
    while isinstance(node, (dict, list)) and node:
        key = random_.choice(list(node)) if isinstance(node, dict) else random_.randrange(len(node))
        found = (node, key)
        if random_.random() < 0.2:
            break
        node = node[key]
    return found


def drop_keys(content: Any, random_: random.Random) -> bytes:
    for _ in range(random_.randint(1, 30)):
        if (found := walk(content, random_)) is not None:
            del found[0][found[1]]
    return json.dumps(content).encode()


def swap_types(content: Any, random_: random.Random) -> bytes:
    for _ in range(random_.randint(1, 30)):
        if (found := walk(content, random_)) is not None:
            found[0][found[1]] = copy.deepcopy(random_.choice(ODD_VALUES))
    return json.dumps(content).encode("utf-8", "surrogatepass")


def truncate(content: Any, random_: random.Random) -> bytes:
    data = dumped(content, random_)
    return data[: random_.randrange(len(data))]


def flip(content: Any, random_: random.Random) -> bytes:
    data = bytearray(dumped(content, random_))
    for _ in range(random_.choice((1, 3, 20, 200))):
        data[random_.randrange(len(data))] = random_.randrange(256)
    return bytes(data)


def splice(content: Any, random_: random.Random) -> bytes:
    """Move a piece of the text elsewhere, as a damaged disk or a bad merge does."""
    data = dumped(content, random_)
    start, length, to = random_.randrange(len(data)), random_.randrange(2000), random_.randrange(len(data))
    return data[:to] + data[start : start + length] + data[to + random_.randrange(500) :]


def dumped(content: Any, random_: random.Random) -> bytes:
    return json.dumps(content, indent=random_.choice((None, 2))).encode()


MUTATIONS: list[Callable[[Any, random.Random], bytes]] = [drop_keys, swap_types, truncate, flip, splice]
PACKINGS = [lambda data: data, gzip.compress, zstandard.compress]


def mutated(random_: random.Random) -> bytes:
    content = json.loads(json.dumps(random_.choice(BASES)))
    data = random_.choice(MUTATIONS)(content, random_)
    packed = bytearray(random_.choice(PACKINGS)(data))
    if random_.random() < 0.15 and packed:
        packed[random_.randrange(len(packed))] ^= 1 << random_.randrange(8)
    return bytes(packed)


def check(run: Run) -> None:
    """Whatever was read keeps the contract of the tables."""
    for name, table in run.tables.items():
        assert dict(table.schema) == TABLES[name].empty().schema
        if {"start_ns", "end_ns"} <= set(table.columns):
            assert (table["end_ns"] >= table["start_ns"]).all(), name


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_no_mutation_breaks_the_reader(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    path = tmp_path / "rank0.json"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = 0
    for _ in range(PER_ROUND):
        path.write_bytes(mutated(random_))
        began = time.perf_counter()
        try:
            run = load([str(path)])
        except DdiagError:
            run = None
        if run is not None:
            check(run)
            used += 1
        assert time.perf_counter() - began < LIMIT_S
    assert used > PER_ROUND // 3, "most mutations leave something to use"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < GROWTH_MB
